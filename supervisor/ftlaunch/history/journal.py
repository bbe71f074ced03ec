"""events.jsonl: one JSON object a line."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ftlaunch_contract.files import atomic

EVENTS = "events.jsonl"
LONGEST_LINE = 16 << 20  # bytes: eight times what 100,000 ranks fill in one event
TORN, TOO_LONG, STRANGE = "torn", "too long", "no event"
"""why a line is left out: a crash has torn it, it is longer than LONGEST_LINE, it is JSON and no event"""


# fields that hold a number, or a text, in whatever event they are
_NUMBERS = frozenset({"ago", "attempt", "bytes", "code", "front", "rank", "restarts", "seconds", "since_progress",
                      "step", "steps_lost"})  # fmt: skip
_TEXTS = frozenset({"autopsy", "by", "cause", "error", "kind", "path", "sentence", "source", "trace",
                    "verdict", "why"})  # fmt: skip
_LARGEST = 1e15  # of a number: more than a century in microseconds, or than all bytes of a large job


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

    def stamped(self, event: str, **fields: Any) -> dict[str, Any]:
        """An event as its line will say it: with the time and the attempt."""
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
        mono = round(time.monotonic(), 6)
        return {"t": stamp, "mono": mono, "attempt": self.attempt, "event": event, **fields}

    def append(self, line: dict[str, Any]) -> None:
        """Write an event that was `stamped`. Raises OSError."""
        atomic.write_all(self._fd, json.dumps(line).encode() + b"\n")

    def write(self, event: str, **fields: Any) -> None:
        """Append one event. Raises OSError."""
        self.append(self.stamped(event, **fields))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def open_journal(run_dir: Path) -> BinaryIO:
    """The journal of a run dir, for reading. Raises OSError, also where it is a FIFO, which would block."""
    path = run_dir / EVENTS
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    kind = os.fstat(fd).st_mode
    if not stat.S_ISREG(kind):
        os.close(fd)
        why = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
        raise OSError(why, os.strerror(why) if stat.S_ISDIR(kind) else "it is no regular file", str(path))
    return os.fdopen(fd, "rb")


def event_of(line: bytes) -> dict[str, Any] | None:
    """The event that a whole line of a journal holds; None where it is JSON and no event. Raises ValueError."""
    try:
        event = json.loads(line.decode(errors="replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return event if isinstance(event, dict) and "event" in event else None


def sound(event: dict[str, Any]) -> dict[str, Any]:
    """An event without those of its known fields whose values are of another kind: a foreign hand has written them."""
    odd = [name for name, value in event.items() if not _fits(event, name, value)]
    return event if not odd else {name: value for name, value in event.items() if name not in odd}


def _fits(event: dict[str, Any], name: str, value: object) -> bool:
    if name in _NUMBERS or (name == "ranks" and event["event"] == "job_started"):  # elsewhere it is a list
        return isinstance(value, (int, float)) and -_LARGEST < value < _LARGEST  # nan is not either
    if name in _TEXTS:
        return value is None or isinstance(value, str)
    if name == "killed_at":
        return value is None or (isinstance(value, dict) and all(_fits(event, *field) for field in value.items()))
    return True


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """All whole lines of a run's journal. Raises FileNotFoundError when there is none."""
    return list(stream_events(run_dir))


def stream_events(run_dir: Path, dropped: Counter[str] | None = None) -> Iterator[dict[str, Any]]:
    """The whole lines of a run's journal, one after another: a journal of any length is never in memory as a whole.

    dropped: counts the lines that are left out, by the reason. Raises OSError at the first line.
    """
    left_out: Counter[str] = Counter() if dropped is None else dropped
    with open_journal(run_dir) as file:
        while line := file.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                left_out[TOO_LONG] += 1
                while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                    pass
                continue
            try:
                event = event_of(line)
            except ValueError:
                left_out[TORN] += bool(line.strip())
                continue
            if event is None:
                left_out[STRANGE] += 1
            else:
                yield event
