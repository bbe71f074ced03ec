"""Imports modules, and says whether ranks can be forked from this process then, and which module is in the way.

Loaded as a file by fork_server.py, in a Python that may lack the hooks.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Collection
from pathlib import Path

_TASKS, _FILES = Path("/proc/self/task"), Path("/proc/self/fd")


class ImportedModules:
    """What was imported by `load`, and what each module has left: threads, open files."""

    def __init__(self, known: Collection[int]) -> None:
        """known: descriptors that are no module's."""
        self._known = {0, 1, 2, *known}
        self._left_by: dict[str, str] = {}  # a thread's or an open file's path in /proc -> the module
        self._note("")

    def load(self, name: str) -> None:
        """Import a module; `module:name`: import a name from it, which may be a module, too."""
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
        """Why no rank can be forked, and which module is in the way; ("", "") when ranks can be forked.

        The module is "" where that is not known.
        """
        import torch  # noqa: PLC0415 - it is what takes a second

        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return "a module initialises CUDA when it is imported, and CUDA does not survive a fork", ""
        # Fork once on trial: torch.cuda then knows whether a fork breaks it, and OpenBLAS ends its threads at a fork.
        spoilt = getattr(torch.cuda, "_is_in_bad_fork", bool)
        trial = os.fork()
        if trial == 0:
            os._exit(int(spoilt()))
        if os.waitpid(trial, 0)[1] != 0:
            why = "a module asks CUDA for its devices when it is imported, and CUDA does not survive a fork after that"
            return why, ""
        threads = [path for path in _listed(_TASKS) if path.name != str(os.getpid())]
        if threads:
            module, names = self._leaver(threads), ", ".join(sorted(map(_thread_name, threads)))
            what = f"starts a thread when it is imported ({names}), and threads do not survive a fork"
            return f"{module or 'a module'} {what}", module
        files = [path for path in _open_files() if int(path.name) not in self._known]
        if files:
            module, names = self._leaver(files), ", ".join(sorted(str(path.readlink()) for path in files))
            what = "leaves files open when it is imported, which ranks would share"
            return f"{module or 'a module'} {what}: {names}", module
        return "", ""

    def _leaver(self, paths: Collection[Path]) -> str:
        """The module that left the first of these."""
        return next((module for path in paths if (module := self._left_by.get(str(path), ""))), "")


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir(), key=lambda path: int(path.name))


def _open_files() -> list[Path]:
    return [path for path in _listed(_FILES) if path.is_symlink()]  # without that of the listing


def _thread_name(task: Path) -> str:
    """The name that Python knows a thread by; of others the one that the kernel knows."""
    for thread in threading.enumerate():
        if str(thread.native_id) == task.name:
            return thread.name
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has ended meanwhile
        return f"thread {task.name}"
