"""The supervisor's end of an autopsy: begin it, see when it is over, read what it has left. Never waits."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftlaunch.autopsy import rank_dump
from ftlaunch.autopsy.rank_dump import RankDump
from ftlaunch.system.helper_process import HelperProcess, HelperProcesses, module

KEPT = 10  # autopsies
TIME = 3.0  # most seconds that one takes
_OURS = re.compile(r"\.?(?:rank_\d+\.(?:stack\.txt|proc\.json|flight\.json)|gpu\.txt|verdict\.txt)")
_NAME = re.compile(r"attempt_(\d+)")


class Autopsy:
    """One autopsy under way, or over."""

    def __init__(
        self, helpers: HelperProcesses, run_dir: Path, name: str, memory: Path, ranks: Sequence[dict[str, Any]]
    ) -> None:
        """Begin it; where it cannot begin, it is over at once and `error` says why.

        name: of its directory; an autopsy that lies there is replaced.
        ranks: for each rank, pid, log, whether it can show its stacks, and why it is asked.
        """
        self.directory = run_dir / "autopsy" / name
        self.error = ""
        self._ranks = [entry["rank"] for entry in ranks]
        self._process: HelperProcess | None = None
        self._until = time.monotonic() + TIME
        request = {"directory": str(self.directory), "memory": str(memory), "ranks": list(ranks)}
        try:
            _make_room(self.directory)
            self._process = _begin(helpers, json.dumps(request).encode())
        except OSError as error:
            self.error = f"cannot make an autopsy: {error.strerror}"

    def over(self) -> bool:
        """Whether it is over, or its time is."""
        if self._process is None or self._process.poll() is not None:
            return True
        if time.monotonic() < self._until:
            return False
        self.error = f"the autopsy was not over within {TIME:.0f} s"
        self.end()
        return True

    def end(self) -> None:
        """No more of it."""
        if self._process is not None:
            self._process.kill()

    def dumps(self) -> dict[int, RankDump]:
        """What it has collected of each rank."""
        return {rank: self._read(rank) for rank in self._ranks}

    def _read(self, rank: int) -> RankDump:
        base = self.directory / f"rank_{rank}"
        stack = _text(base.with_name(f"{base.name}.stack.txt")).partition("\n--- child ")[0]
        facts = _json(base.with_name(f"{base.name}.proc.json"))
        recorder = _json(base.with_name(f"{base.name}.flight.json"))
        return rank_dump.read(rank, stack, facts or {}, recorder)

    def conclude(self, sentence: str) -> None:
        """Put what was found beside what it was found from."""
        try:
            path = self.directory / "verdict.txt"
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "w") as file:
                file.write(f"{sentence}\n")
        except OSError as error:
            self.error = f"cannot write {self.directory}: {error.strerror}"


def _begin(helpers: HelperProcesses, request: bytes) -> HelperProcess:
    """Start the collector. Raises OSError."""
    with os.fdopen(os.memfd_create("autopsy"), "w+b") as file:  # as long as need be: a pipe would fill up
        file.write(request)
        file.seek(0)
        return helpers.start(module("ftlaunch.autopsy.collector"), stdin=file)


def _make_room(directory: Path) -> None:
    """An empty private directory; of those beside it the newest stay. Raises OSError."""
    directory.parent.mkdir(mode=0o700, exist_ok=True)
    if directory.exists():  # an earlier run of the job had this number
        _remove(directory)
    ours = [path for path in directory.parent.iterdir() if _NAME.fullmatch(path.name)]
    for old in sorted(ours, key=lambda path: path.stat().st_mtime)[: len(ours) - KEPT + 1 if len(ours) >= KEPT else 0]:
        _remove(old)
    directory.mkdir(mode=0o700)


def _remove(directory: Path) -> None:
    """What we wrote, and the directory when nothing else is in it. Raises OSError."""
    for path in directory.iterdir():
        if _OURS.fullmatch(path.name):
            path.unlink()
    directory.rmdir()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it was not written, or cannot be read: then that much is not known
        return ""


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(_text(path))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
