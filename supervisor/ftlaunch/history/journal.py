"""events.jsonl: one JSON object a line."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from ftlaunch_contract.files import atomic

EVENTS = "events.jsonl"


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
