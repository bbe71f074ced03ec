"""Calls a function once a script, which need not know these hooks, has imported a certain module.

Two things use this: adapters of frameworks (the rows of TABLE) and the seeding of random number generators from the
job's seed (unseeded_draws.py). Standard library only, because this module runs before the script, in a Python that may
lack the hooks. early/sitecustomize.py and forked_rank.py load it as a file.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

ASKED = "FTLAUNCH_AUTO_ATTACH"
TABLE = {
    # module that a script imports: adapter whose function `imported` is then called with that module
    "transformers.trainer": "ftlaunch_hooks.adapters.auto_transformers",
}

Imported = Callable[[ModuleType], None]


def install(environ: Mapping[str, str], table: Mapping[str, str] = TABLE, *, forked: bool = False) -> None:
    """Call adapters and seed generators from now on, as far as this rank's environment asks for that.

    Args:
        environ: the rank's environment.
        table: adapters' names by the modules that they wait for.
        forked: whether this rank is forked. torch is imported already then, and forked_rank.py seeds it.
    """
    calls: dict[str, Imported] = dict(_unseeded_draws().calls(environ, with_torch=not forked))
    if environ.get(ASKED) == "1":
        calls |= {name: functools.partial(_attach, adapter) for name, adapter in table.items()}
    for name in [name for name in calls if name in sys.modules]:  # the fork server or Python's start has imported it
        calls.pop(name)(sys.modules[name])
    if calls:
        sys.meta_path.insert(0, ImportHook(calls))


def _unseeded_draws() -> ModuleType:
    """Load a file from beside this one: a Python without these hooks cannot import it as part of a package."""
    path = Path(__file__).with_name("unseeded_draws.py")
    spec = importlib.util.spec_from_file_location("_ftlaunch_unseeded_draws", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ImportHook(importlib.abc.MetaPathFinder):
    """Finds modules by means of the other finders, and makes a call after a module's import."""

    def __init__(self, calls: Mapping[str, Imported]) -> None:
        """calls: functions to be called with a module, by the module's name."""
        self._calls = dict(calls)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a module that a call waits for, and None for any other module.

        The call is made when the module is executed, as a module that is found need not be imported.
        """
        if name not in self._calls:
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, functools.partial(self._imported, name))
                return spec
        return None

    def _imported(self, name: str, module: ModuleType) -> None:
        if (call := self._calls.pop(name, None)) is not None:
            call(module)
        if not self._calls and self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader(importlib.abc.Loader):
    """Wraps a module's own loader, and makes a call after the module is executed."""

    def __init__(self, loader: Any, imported: Imported) -> None:
        self._loader = loader
        self._imported = imported

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> Any:
        """Create the module by its own loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, and make the call."""
        module.__loader__ = self._loader
        assert module.__spec__ is not None
        module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._imported(module)


def _attach(adapter: str, module: ModuleType) -> None:
    """Pass the module to the adapter; without the hooks say that the module runs without snapshots."""
    try:
        imported = importlib.import_module(adapter).imported
    except ImportError as error:
        sys.stderr.write(f"ftlaunch: cannot attach to {module.__name__}: {error}; it runs without snapshots\n")
        return
    imported(module)
