"""Writes and reads the journal of a run dir, events.jsonl: one JSON object a line.

The supervisor appends events. Commands, dashboards and metrics read them, also while the supervisor writes: each line
is one write, so that only the last line can be unfinished, or torn by a crash.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ftlaunch.common.finite import without_nan
from ftlaunch.common.line_splitter import LONGEST_LINE
from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.regular_file import open_regular

EVENTS = "events.jsonl"
TORN = "torn"
"""why a line is left out: a crash has torn it, so that it is no JSON"""
TOO_LONG = "too long"
"""why a line is left out: it is longer than LONGEST_LINE"""
STRANGE = "no event"
"""why a line is left out: it is JSON, but no event with a name"""


class Journal:
    """Appends events to a journal. Each line is one write, so that a crash tears at most the last line."""

    def __init__(self, run_dir: Path) -> None:
        """Open `<run-dir>/events.jsonl`, which is created if it is missing. Raises OSError."""
        self.path = run_dir / EVENTS
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.attempt = 0
        """number of the attempt that events are stamped with"""
        self._end_torn_line()

    def _end_torn_line(self) -> None:
        """End a line that a crash has torn, so that the next event has a line of its own. Raises OSError."""
        size = os.fstat(self._fd).st_size
        if size:
            with self.path.open("rb") as file:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    atomic.write_all(self._fd, b"\n")

    def stamped(self, event: str, **fields: Any) -> dict[str, Any]:
        """Return an event with the time, the attempt and its fields; numbers that are not finite become None."""
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
        mono = round(time.monotonic(), 6)
        return {"t": stamp, "mono": mono, "attempt": self.attempt, "event": event, **without_nan(fields)}

    def append(self, line: bytes) -> None:
        """Write a line that `encoded` has made. Raises OSError."""
        atomic.write_all(self._fd, line)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event. Raises OSError."""
        self.append(encoded(self.stamped(event, **fields)))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def encoded(event: dict[str, Any]) -> bytes:
    """Return the line of an event that `Journal.stamped` has made."""
    return json.dumps(event).encode() + b"\n"


def open_journal(run_dir: Path) -> BinaryIO:
    """Open the journal of a run dir for reading. Raises OSError, also if it is a FIFO, which would block."""
    return open_regular(run_dir / EVENTS)


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """Return all events of a run dir's journal, without unsound lines. Raises OSError if the journal cannot be read."""
    return list(stream_events(run_dir))


def stream_events(run_dir: Path, dropped: Counter[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the events of a run dir's journal one by one, so that a long journal is never in memory as a whole.

    Args:
        run_dir: the run dir.
        dropped: counts the lines that are left out, by the reason (TORN, TOO_LONG, STRANGE).

    Raises:
        OSError: the journal cannot be read. Raised when the first event is requested.
    """
    left_out: Counter[str] = Counter() if dropped is None else dropped
    with open_journal(run_dir) as file:
        while line := file.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                left_out[TOO_LONG] += 1
                while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                    pass
                continue
            event = parsed(line)
            if isinstance(event, dict):
                yield event
            else:
                left_out[event] += bool(line.strip())


def parsed(line: bytes) -> dict[str, Any] | str:
    """Return the event of a line, or the reason for having none: TORN or STRANGE. An event's name is a text."""
    try:
        event = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return TORN
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else STRANGE
