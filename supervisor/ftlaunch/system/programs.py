"""Finds the programs that run in a rank's Python, which may not have the hooks installed."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def program(name: str) -> Path:
    """Return the path of ftlaunch_hooks/programs/NAME.py.

    The package is found without importing the hooks, which would take effect on import. The result is cached, because
    the directories in which Python looks for modules may lie on storage that does not answer later.
    """
    hooks = find_spec("ftlaunch_hooks")
    assert hooks is not None, "the package ftlaunch brings ftlaunch_hooks with it"
    assert hooks.submodule_search_locations is not None
    return Path(hooks.submodule_search_locations[0]) / "programs" / f"{name}.py"
