"""Reads a journal that is being written: every whole line once, and lines that make no sense never."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ftlaunch.history.journal import EVENTS
from ftlaunch.metrics.line_check import sound

_BLOCK = 1 << 20


class JournalTail:
    """Of one run dir."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / EVENTS
        self._file: int | None = None
        self._rest = b""
        self.skipped = 0
        """lines that were passed over: torn by a crash, no event, or with a value of a type that nobody awaits"""

    def lines(self) -> Iterator[dict[str, Any]]:
        """The events since the last call. Raises OSError; what was read until then is not lost."""
        if self._file is None:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        while block := os.read(self._file, _BLOCK):
            *whole, self._rest = (self._rest + block).split(b"\n")
            for line in whole:
                if (event := _event(line)) is not None:
                    yield event
                else:
                    self.skipped += bool(line.strip())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _event(line: bytes) -> dict[str, Any] | None:
    """The event of a line; None where the line is none that can be calculated with."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and sound(event) else None
