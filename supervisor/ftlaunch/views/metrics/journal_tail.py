"""Reads a journal while it is written. Each complete line is read once; unusable lines are counted and skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ftlaunch.common.line_splitter import LineSplitter
from ftlaunch.history.journal import open_journal
from ftlaunch.views.metrics.line_check import sound

_BLOCK = 1 << 20


class JournalTail:
    """The tail of one run dir's journal."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._file: BinaryIO | None = None
        self._splitter = LineSplitter()
        self._nonsense = 0

    @property
    def skipped(self) -> int:
        """Number of skipped lines: torn by a crash, too long, no event, or with a value of an unexpected type."""
        return self._nonsense + self._splitter.too_long

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the events since the last call.

        Raises:
            OSError: the journal cannot be read. Events that were yielded before stay valid.
        """
        if self._file is None:
            self._file = open_journal(self._run_dir)
        while block := self._file.read(_BLOCK):
            for line in self._splitter.split(block):
                if (event := _event(line)) is not None:
                    yield event
                else:
                    self._nonsense += bool(line.strip())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _event(line: bytes) -> dict[str, Any] | None:
    """Parse the event of a line; None if the line is unusable."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and sound(event) else None
