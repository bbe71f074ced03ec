"""events.jsonl: one JSON object a line, and the run lock."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftlaunch_hooks import atomic
from ftlaunch_hooks.protocol import process_start_time

EVENTS = "events.jsonl"
LOCK = "lock"
_RETRY = 0.02  # seconds between tries for a lock that a dead supervisor's saver holds


class Locked(Exception):
    """Another supervisor works in this directory, or the saver of one that is gone."""

    def __init__(self, directory: Path, holder: int, alive: bool) -> None:
        who = "a running supervisor" if alive else "the saver of a supervisor that is gone"
        super().__init__(f"{directory} is in use by {who} (pid {holder})")
        self.holder = holder


class DirLock:
    """An flock on `<directory>/lock`. It dies with its last holder; a reused pid cannot fool it."""

    def __init__(self, directory: Path, wait: Callable[[int], None] | None = None, patience: float = 2.0) -> None:
        """Take the lock.

        Where it is held for a supervisor that is dead (its saver finishes a save), wait for that, after
        calling `wait(holder)`; without `wait` for `patience` seconds at most. Raises Locked when the holder
        lives or the patience is over, or OSError.
        """
        give_up = float("inf") if wait is not None else time.monotonic() + patience
        path = directory / LOCK
        while True:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._take(directory, wait, give_up)
            except BaseException:
                os.close(self.fd)
                raise
            if path.exists() and path.stat().st_ino == os.fstat(self.fd).st_ino:
                break
            os.close(self.fd)  # its last holder has removed the directory's files: begin anew
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, f"{os.getpid()} {process_start_time(os.getpid())}\n".encode(), 0)

    def _take(self, directory: Path, wait: Callable[[int], None] | None, give_up: float) -> None:
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                holder, start = self._holder()
            # Asked again every time: who has just taken the lock may not have written its name yet.
            alive = holder != 0 and process_start_time(holder) == start
            if alive or time.monotonic() >= give_up:
                raise Locked(directory, holder, alive)
            if holder and wait is not None:
                wait(holder)
                wait = None
            time.sleep(_RETRY)

    def _holder(self) -> tuple[int, int]:
        words = os.pread(self.fd, 64, 0).split()
        if len(words) != 2 or not all(word.isdigit() for word in words):
            return 0, -1
        return int(words[0]), int(words[1])

    def release(self) -> None:
        """Give the lock back."""
        os.close(self.fd)


class Journal:
    """Appends events; each line is one write, so that a crash tears at most the last."""

    def __init__(self, run_dir: Path) -> None:
        """Open `<run-dir>/events.jsonl`; raises OSError."""
        self.path = run_dir / EVENTS
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.attempt = 0
        self._mend()

    def _mend(self) -> None:
        """End the line that a crash has torn, so that the next event stands on its own."""
        size = os.fstat(self._fd).st_size
        if size:
            with self.path.open("rb") as file:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    atomic.write_all(self._fd, b"\n")

    def write(self, event: str, **fields: Any) -> None:
        """Append one event. Raises OSError."""
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
        mono = round(time.monotonic(), 6)
        line = {"t": stamp, "mono": mono, "attempt": self.attempt, "event": event, **fields}
        atomic.write_all(self._fd, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """All whole lines of a run's journal. Raises FileNotFoundError when there is none."""
    events = []
    for line in (run_dir / EVENTS).read_text(errors="replace").split("\n"):
        try:
            event = json.loads(line)
        except ValueError:
            continue  # torn by a crash
        if isinstance(event, dict) and "event" in event:
            events.append(event)
    return events
