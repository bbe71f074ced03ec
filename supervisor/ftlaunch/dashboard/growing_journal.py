"""A journal as it grows: what has been appended since the last look, and no more, is read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ftlaunch.history.journal import EVENTS

_BLOCK = 1 << 20  # bytes
_LONGEST = 16 << 20  # bytes of a line; what is longer is passed over


class GrowingJournal:
    """Of one run dir."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / EVENTS
        self._file = 0, 0  # device and inode
        self._offset = 0
        self._rest, self._passing = b"", False  # the line that has no end yet; it is too long, and passed over
        self.files = 0
        """how many journals there were, one in the place of the other: what came before a new one counts no more"""

    def appended(self) -> Iterator[dict[str, Any]]:
        """The events since the last call. A last line without its end is read when that is written. Raises OSError."""
        with self._path.open("rb") as file:
            found = os.fstat(file.fileno())
            if self._file != (found.st_dev, found.st_ino) or found.st_size < self._offset:
                self._file, self._offset = (found.st_dev, found.st_ino), 0
                self._rest, self._passing = b"", False
                self.files += 1
            file.seek(self._offset)
            for line in self._lines(file):
                if (event := _event(line)) is not None:
                    yield event

    def _lines(self, file: BinaryIO) -> Iterator[bytes]:
        while block := file.read(_BLOCK):
            self._offset += len(block)
            *lines, rest = (self._rest + block).split(b"\n")
            yield from lines[self._passing :]
            self._passing = (self._passing and not lines) or len(rest) > _LONGEST
            self._rest = b"" if self._passing else rest


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None  # torn by a crash
    return event if isinstance(event, dict) and "event" in event else None
