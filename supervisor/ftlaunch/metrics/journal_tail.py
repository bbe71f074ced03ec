"""Reads a journal that is being written: every whole line once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ftlaunch.history.journal import EVENTS

_BLOCK = 1 << 20


class JournalTail:
    """Of one run dir."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / EVENTS
        self._file: int | None = None
        self._rest = b""

    def lines(self) -> Iterator[dict[str, Any]]:
        """The events since the last call. Raises OSError; what was read until then is not lost."""
        if self._file is None:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        while block := os.read(self._file, _BLOCK):
            *whole, self._rest = (self._rest + block).split(b"\n")
            for line in whole:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # torn by a crash
                if isinstance(event, dict):
                    yield event

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
