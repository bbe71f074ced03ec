"""Installs the import hook in a rank before its script runs.

Python imports this module at its start. The module leaves no trace: a sitecustomize of the site's runs, too, and
programs that the script starts do not find this folder.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

_HERE = str(Path(__file__).parent)


def _run(spec: ModuleSpec) -> object:
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def _forget_this_folder() -> None:
    """Remove this folder from sys.path and PYTHONPATH, so that programs that the script starts do not find it."""
    sys.path[:] = [folder for folder in sys.path if folder != _HERE]
    others = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder != _HERE]
    os.environ["PYTHONPATH"] = os.pathsep.join(others)
    if not os.environ["PYTHONPATH"]:
        del os.environ["PYTHONPATH"]


if __name__ == "sitecustomize":
    _forget_this_folder()
    hook = importlib.util.spec_from_file_location("_ftlaunch_import_hook", Path(_HERE).parent / "import_hook.py")
    assert hook is not None
    _run(hook).install(os.environ)  # type: ignore[attr-defined]
    if (other := PathFinder.find_spec("sitecustomize")) is not None and other.loader is not None:
        _run(other)
