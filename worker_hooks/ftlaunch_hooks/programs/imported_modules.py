"""Imports modules, and says whether ranks can still be forked from this process and which module prevents that.

fork_server.py loads this module as a file, in a Python that may lack the hooks.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Collection
from pathlib import Path

_TASKS = Path("/proc/self/task")
_FILES = Path("/proc/self/fd")


class ImportedModules:
    """Imports modules and records which threads and open files each module has left."""

    def __init__(self, known: Collection[int]) -> None:
        """known: descriptors that belong to no module, besides the standard streams."""
        self._known = {0, 1, 2, *known}
        self._left_by: dict[str, str] = {}  # a thread's or an open file's path in /proc -> the module
        self._note("")

    def load(self, name: str) -> None:
        """Import a module, or from `module:name` a name of a module, which may be a module, too.

        Whatever the module's import raises is raised.
        """
        module, _, wanted = name.partition(":")
        if wanted:
            __import__(module, fromlist=(wanted,))
        else:
            importlib.import_module(module)
        self._note(name)

    def _note(self, module: str) -> None:
        for path in (*_listed(_TASKS), *_open_files()):
            self._left_by.setdefault(str(path), module)

    def obstacle(self) -> tuple[str, str]:
        """Find out whether ranks can be forked. Forks this process once on trial.

        Returns:
            The reason why no rank can be forked ("" if ranks can be forked), and the module that is the cause ("" if
            unknown).
        """
        import torch  # noqa: PLC0415 - it is what takes a second

        accelerator = torch.accelerator.current_accelerator()  # the one that torch was built for; asks no driver
        kind = "cuda" if accelerator is None else accelerator.type
        module = getattr(torch, kind, None)
        if getattr(module, "is_initialized", bool)():
            return f"a module initialises {kind.upper()} when it is imported, and that does not survive a fork", ""
        # Fork once on trial: torch then knows whether a fork breaks it, and OpenBLAS ends its threads at a fork.
        spoilt = getattr(module, "_is_in_bad_fork", bool)
        trial = os.fork()
        if trial == 0:
            os._exit(int(spoilt()))
        if os.waitpid(trial, 0)[1] != 0:
            why = f"a module asks {kind.upper()} for its devices when it is imported, and a fork breaks that"
            return why, ""
        threads = [path for path in _listed(_TASKS) if path.name != str(os.getpid())]
        if threads:
            module = self._module_of(threads)
            names = ", ".join(sorted(map(_thread_name, threads)))
            what = f"starts a thread when it is imported ({names}), and threads do not survive a fork"
            return f"{module or 'a module'} {what}", module
        files = [path for path in _open_files() if int(path.name) not in self._known]
        if files:
            module = self._module_of(files)
            names = ", ".join(sorted(str(path.readlink()) for path in files))
            what = "leaves files open when it is imported, which ranks would share"
            return f"{module or 'a module'} {what}: {names}", module
        return "", ""

    def _module_of(self, paths: Collection[Path]) -> str:
        """Return the module that left the first of these threads or files whose module is known, or ""."""
        for path in paths:
            if module := self._left_by.get(str(path), ""):
                return module
        return ""


def _listed(folder: Path) -> list[Path]:
    """Return the entries of a folder of /proc whose names are numbers, in the numbers' order."""
    return sorted(folder.iterdir(), key=lambda path: int(path.name))


def _open_files() -> list[Path]:
    return [path for path in _listed(_FILES) if path.is_symlink()]  # the listing's own descriptor is closed by now


def _thread_name(task: Path) -> str:
    """Return a thread's name in Python, or the kernel's name for a thread that Python does not know."""
    for thread in threading.enumerate():
        if str(thread.native_id) == task.name:
            return thread.name
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # the thread has ended meanwhile
        return f"thread {task.name}"
