"""Calls an adapter once its framework has been imported by a script that knows nothing of these hooks.

Only the standard library is used here: it runs before the script does, in a Python that may lack these hooks. A
framework's adapter is a row of TABLE.
"""

from __future__ import annotations

import importlib
import importlib.abc
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ASKED = "FTLAUNCH_AUTO_ATTACH"
TABLE = {
    # what a script imports: the module whose function `imported` is then called with it
    "transformers.trainer": "ftlaunch_hooks.adapters.auto_transformers",
}


def install(environ: Mapping[str, str], table: Mapping[str, str] = TABLE) -> None:
    """Call the adapters from now on, where the environment of this rank asks for it."""
    if environ.get(ASKED) != "1":
        return
    sys.meta_path.insert(0, ImportHook(table))
    for name in table:
        if (module := sys.modules.get(name)) is not None:  # a warm process has imported it
            _call(table[name], module)


class ImportHook(importlib.abc.MetaPathFinder):
    """Finds what the other finders find, and has the adapter called behind its import."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self._table = dict(table)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for every module but those of the table."""
        if name not in self._table:
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._table.pop(name))
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """A module's own loader, and the call behind it."""

    def __init__(self, loader: Any, adapter: str) -> None:
        self._loader, self._adapter = loader, adapter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> Any:
        """As the module's own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute it, and call the adapter."""
        module.__loader__ = self._loader
        assert module.__spec__ is not None
        module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _call(self._adapter, module)


def _call(adapter: str, module: ModuleType) -> None:
    try:
        imported = importlib.import_module(adapter).imported
    except ImportError as error:
        sys.stderr.write(f"ftlaunch: cannot attach to {module.__name__}: {error}; it runs without snapshots\n")
        return
    imported(module)
