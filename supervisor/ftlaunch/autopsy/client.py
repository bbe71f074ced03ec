"""The supervisor's end of an autopsy: starts the collector, sees when it has ended, reads its files. Never waits."""

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

KEPT = 10  # autopsies of a job
TIME = 3.0  # seconds that one autopsy may take
_OURS = re.compile(r"\.?(?:rank_\d+\.(?:stack\.txt|proc\.json|flight\.json)|gpu\.txt|verdict\.txt)")
_NAME = re.compile(r"attempt_(\d+)")


class DumpCollector(Protocol):
    """Collects what an autopsy is made of: a process, or one on each node."""

    def poll(self) -> int | None:
        """None while it collects."""

    def kill(self) -> None:
        """End it."""


Collect = Callable[[dict[str, Any]], DumpCollector]
"""Starts a collector for a request: `directory` and `ranks`. Raises OSError."""


def collect_here(helpers: HelperProcesses, memory: Path) -> Collect:
    """Collect on this machine, in a process of its own. memory: where the ranks' pages are."""
    return lambda request: _begin(helpers, json.dumps({**request, "memory": str(memory)}).encode())


class Autopsy:
    """One autopsy under way, or over."""

    def __init__(
        self, collect: Collect, run_dir: Path, files: FileThread, name: str, ranks: Sequence[dict[str, Any]]
    ) -> None:
        """Start the collector; where that fails, the autopsy is over at once and `error` says why.

        files: touches the run dir.
        name: of the autopsy's directory; an earlier autopsy of that name is replaced.
        ranks: for each rank, pid, log, whether it can show its stacks, and why it is asked.
        """
        self.directory = run_dir / "autopsy" / name
        self.error = ""
        self._files = files
        self._ranks = [entry["rank"] for entry in ranks]
        self._process: DumpCollector | None = None
        self._until = time.monotonic() + TIME
        try:
            files.call(lambda: _make_room(self.directory))
            self._process = collect({"directory": str(self.directory), "ranks": list(ranks)})
        except OSError as error:
            self.error = f"cannot make an autopsy: {error.strerror}"

    def over(self) -> bool:
        """Whether the collector has ended; one that takes longer than TIME is killed."""
        if self._process is None or self._process.poll() is not None:
            return True
        if time.monotonic() < self._until:
            return False
        self.error = f"the autopsy was not over within {TIME:.0f} s"
        self.end()
        return True

    def end(self) -> None:
        """Kill the collector, if it still runs."""
        if self._process is not None:
            self._process.kill()

    def dumps(self) -> dict[int, RankDump]:
        """What was collected of each rank; nothing where the run dir does not answer."""
        try:
            return self._files.call(lambda: {rank: read_dump(self.directory, rank) for rank in self._ranks})
        except FileSystemSilent as error:
            self.error = f"cannot read the autopsy: {error.filename}: {error.strerror}"
            return {}

    def conclude(self, sentence: str) -> None:
        """Write the verdict beside the files from which it was drawn."""
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
    """What an autopsy has collected of a rank, read from its directory; what cannot be read stays unknown.

    read: the text of a file; may raise OSError.
    """
    stack = _text(directory / f"rank_{rank}.stack.txt", read).partition("\n--- child ")[0]
    facts = _json(directory / f"rank_{rank}.proc.json", read)
    recorder = _json(directory / f"rank_{rank}.flight.json", read)
    return rank_dump.read(rank, stack, facts or {}, recorder)


def _begin(helpers: HelperProcesses, request: bytes) -> HelperProcess:
    """Start the collector. Raises OSError."""
    # a file in memory takes a request of any length; a pipe would fill up
    with os.fdopen(memory_file("autopsy"), "w+b") as file:
        file.write(request)
        file.seek(0)
        return helpers.start(module("ftlaunch.autopsy.collector"), stdin=file)


def _make_room(directory: Path) -> None:
    """Make an empty private directory; of the autopsies beside it the newest stay. Raises OSError."""
    directory.parent.mkdir(mode=0o700, exist_ok=True)
    if directory.exists():  # an earlier run of the job had this number
        _remove(directory)
    ours = [path for path in directory.parent.iterdir() if _NAME.fullmatch(path.name)]
    for old in sorted(ours, key=lambda path: path.stat().st_mtime)[: len(ours) - KEPT + 1 if len(ours) >= KEPT else 0]:
        _remove(old)
    directory.mkdir(mode=0o700)


def _remove(directory: Path) -> None:
    """Delete the files that an autopsy writes, then the directory. Raises OSError where it holds anything else."""
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
    try:
        value = json.loads(_text(path, read))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
