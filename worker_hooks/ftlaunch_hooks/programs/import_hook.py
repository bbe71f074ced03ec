"""Calls something once a module has been imported by a script that knows nothing of these hooks.

Only the standard library is used here: it runs before the script does, in a Python that may lack these hooks. A
framework's adapter is a row of TABLE. What draws random numbers is seeded from the job's seed (unseeded_draws.py).
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
    # what a script imports: the module whose function `imported` is then called with it
    "transformers.trainer": "ftlaunch_hooks.adapters.auto_transformers",
}

Imported = Callable[[ModuleType], None]


def install(environ: Mapping[str, str], table: Mapping[str, str] = TABLE, *, forked: bool = False) -> None:
    """Call the adapters from now on, and seed what draws, where the environment of this rank asks for it.

    forked: the rank is forked, where torch is imported already: forked_rank.py seeds torch.
    """
    calls: dict[str, Imported] = dict(_unseeded_draws().calls(environ, with_torch=not forked))
    if environ.get(ASKED) == "1":
        calls |= {name: functools.partial(_attach, adapter) for name, adapter in table.items()}
    for name in [name for name in calls if name in sys.modules]:  # a warm process has imported it, or Python's start
        calls.pop(name)(sys.modules[name])
    if calls:
        sys.meta_path.insert(0, ImportHook(calls))


def _unseeded_draws() -> ModuleType:
    """The file beside this one: a Python without these hooks cannot import it as part of a package."""
    path = Path(__file__).with_name("unseeded_draws.py")
    spec = importlib.util.spec_from_file_location("_ftlaunch_unseeded_draws", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ImportHook(importlib.abc.MetaPathFinder):
    """Finds what the other finders find, and has a call made behind its import."""

    def __init__(self, calls: Mapping[str, Imported]) -> None:
        self._calls = dict(calls)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for every module but those that calls wait for. Finding a module does not import it yet."""
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
    """A module's own loader, and the call behind it."""

    def __init__(self, loader: Any, imported: Imported) -> None:
        self._loader, self._imported = loader, imported

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> Any:
        """As the module's own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, and make the call."""
        module.__loader__ = self._loader
        assert module.__spec__ is not None
        module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._imported(module)


def _attach(adapter: str, module: ModuleType) -> None:
    try:
        imported = importlib.import_module(adapter).imported
    except ImportError as error:
        sys.stderr.write(f"ftlaunch: cannot attach to {module.__name__}: {error}; it runs without snapshots\n")
        return
    imported(module)
