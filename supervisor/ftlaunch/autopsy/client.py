"""The supervisor's end of an autopsy: starts the collector, sees when the collector has ended, reads its files.

The supervisor's event loop calls an `Autopsy`; none of its methods waits for the collector. Files of the run dir are
touched in the file thread, whose deadline bounds the wait for a file system that does not answer.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ftlaunch.autopsy import rank_dump
from ftlaunch.autopsy.rank_dump import RankDump
from ftlaunch.system.file_thread import FileSystemSilent, FileThread
from ftlaunch.system.helper_process import HelperProcess, HelperProcesses
from ftlaunch.system.own_modules import module
from ftlaunch_contract.files.kernel_files import memory_file

KEPT = 10  # newest autopsies of a job; older ones are deleted
AUTOPSY_SECONDS = 3.0  # that one autopsy may take
_OURS = re.compile(r"\.?(?:rank_\d+\.(?:stack\.txt|proc\.json|flight\.json)|gpu\.txt|verdict\.txt)")
_NAME = re.compile(r"attempt_(\d+)")
LEAVING = "leaving"
"""name of the autopsy of ranks that do not leave; only the newest is kept"""


class DumpCollector(Protocol):
    """Collects the dumps of an autopsy: a process on this machine, or one process on each node."""

    def poll(self) -> int | None:
        """Return None while the collector runs, then an exit code."""

    def kill(self) -> None:
        """End the collector at once."""


Collect = Callable[[dict[str, Any]], DumpCollector]
"""Starts a collector for a request with the keys `directory` and `ranks`. Raises OSError."""


def collect_here(helpers: HelperProcesses, memory: Path) -> Collect:
    """Return a function that starts a collector on this machine, in a process of its own.

    Args:
        helpers: starts the process.
        memory: directory of the ranks' pages.
    """
    return lambda request: _begin(helpers, json.dumps({**request, "memory": str(memory)}).encode())


class Autopsy:
    """An autopsy that is under way, or over. `error` says what went wrong; empty if nothing did."""

    def __init__(
        self, collect: Collect, run_dir: Path, files: FileThread, name: str, ranks: Sequence[dict[str, Any]]
    ) -> None:
        """Start the collector. If the start fails, the autopsy is over at once, and `error` says why.

        Args:
            collect: starts the collector.
            run_dir: run dir of the job.
            files: thread that touches the run dir.
            name: name of the autopsy's directory; an earlier autopsy of that name is replaced.
            ranks: one request for each rank, with the keys `rank`, `pid`, `log`, `stacks` (whether the process can show
                its stacks) and `why` (a reason for people).
        """
        self.directory = run_dir / "autopsy" / name
        self.error = ""
        self._files = files
        self._ranks = [entry["rank"] for entry in ranks]
        self._process: DumpCollector | None = None
        self._until = time.monotonic() + AUTOPSY_SECONDS
        try:
            files.call(lambda: make_room(self.directory))
            self._process = collect({"directory": str(self.directory), "ranks": list(ranks)})
        except OSError as error:
            self.error = f"cannot make an autopsy: {error.strerror}"

    def over(self) -> bool:
        """Return whether the collector has ended. A collector that takes longer than AUTOPSY_SECONDS is killed."""
        if self._process is None or self._process.poll() is not None:
            return True
        if time.monotonic() < self._until:
            return False
        self.error = f"the autopsy was not over within {AUTOPSY_SECONDS:.0f} s"
        self.end()
        return True

    def end(self) -> None:
        """Kill the collector if the collector still runs."""
        if self._process is not None:
            self._process.kill()

    def dumps(self) -> dict[int, RankDump]:
        """Return the dump of each rank; empty, with `error` set, if the run dir does not answer.

        A rank whose files are not as an autopsy writes them is unknown, and `error` says so.
        """
        try:
            return self._files.call(lambda: {rank: self._read(rank) for rank in self._ranks})
        except FileSystemSilent as error:
            self.error = f"cannot read the autopsy: {error.filename}: {error.strerror}"
            return {}

    def _read(self, rank: int) -> RankDump:
        try:
            return read_dump(self.directory, rank)
        except ValueError as error:
            self.error = f"cannot read the autopsy of rank {rank} in {self.directory}: {error}"
            return RankDump(rank)

    def conclude(self, sentence: str) -> None:
        """Write the verdict beside the files from which the verdict was drawn. A failure sets `error`."""
        path = self.directory / "verdict.txt"

        def write() -> None:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "w") as file:
                file.write(f"{sentence}\n")

        try:
            self._files.call(write)
        except OSError as error:
            self.error = f"cannot write {self.directory}: {error.strerror}"


def _whole(path: Path) -> str:
    return path.read_text(errors="replace")


def read_dump(directory: Path, rank: int, read: Callable[[Path], str] = _whole) -> RankDump:
    """Return the dump of a rank from an autopsy's directory; what cannot be read stays unknown.

    Args:
        directory: directory of the autopsy.
        rank: the rank.
        read: returns the text of a file, or raises OSError.

    Raises:
        ValueError: a file is not as an autopsy writes it.
    """
    stack = _text(directory / f"rank_{rank}.stack.txt", read).partition("\n--- child ")[0]
    facts = _json(directory / f"rank_{rank}.proc.json", read)
    recorder = _json(directory / f"rank_{rank}.flight.json", read)
    return rank_dump.read(rank=rank, stack=stack, facts=facts or {}, recorder=recorder)


def _begin(helpers: HelperProcesses, request: bytes) -> HelperProcess:
    """Start the collector. Raises OSError."""
    # A file in memory takes a request of any length; a pipe would fill up.
    with os.fdopen(memory_file("autopsy"), "w+b") as file:
        file.write(request)
        file.seek(0)
        return helpers.start(module("ftlaunch.autopsy.collector"), stdin=file)


def make_room(directory: Path) -> None:
    """Make an empty private directory, and delete the oldest autopsies beside the directory. Raises OSError."""
    directory.parent.mkdir(mode=0o700, exist_ok=True)
    if directory.exists():  # an earlier run of the job had this number
        _remove(directory)
    autopsies = [path for path in directory.parent.iterdir() if _NAME.fullmatch(path.name)]
    surplus = max(len(autopsies) - KEPT + 1, 0)
    for old in sorted(autopsies, key=lambda path: path.stat().st_mtime)[:surplus]:
        _remove(old)
    directory.mkdir(mode=0o700)


def is_name(directory: str, file: str) -> bool:
    """Return whether an autopsy's directory may have a name, and may hold a file of a name."""
    return bool((directory == LEAVING or _NAME.fullmatch(directory)) and _OURS.fullmatch(file))


def _remove(directory: Path) -> None:
    """Delete the files that an autopsy writes, then the directory. Raises OSError if other files are in it."""
    for path in directory.iterdir():
        if _OURS.fullmatch(path.name):
            path.unlink()
    directory.rmdir()


def _text(path: Path, read: Callable[[Path], str]) -> str:
    try:
        return read(path)
    except OSError:  # not written, or not readable: what the file would say stays unknown
        return ""


def _json(path: Path, read: Callable[[Path], str]) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if the file holds none."""
    try:
        value = json.loads(_text(path, read))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
