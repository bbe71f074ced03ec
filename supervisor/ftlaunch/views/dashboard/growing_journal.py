"""Follows a growing journal: each call reads only what was appended since the last call.

The objects are used by one thread at a time, the helper thread of a `PageWatcher`. Readers notice that the journal was
replaced or truncated, and begin again with the new one.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

from ftlaunch.common.line_splitter import LineSplitter
from ftlaunch.history.journal import TOO_LONG, parsed
from ftlaunch.views.dashboard.run_state import RunState
from ftlaunch.views.report_page.run_files import open_journal

_BLOCK = 1 << 20  # bytes
_HEAD_BYTES = 200  # compared besides the inode, because file systems reuse the inode of a deleted file


class GrowingJournal:
    """Reads the events of one run dir's journal incrementally."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.size = 0
        """size of the journal in bytes at the last call"""
        self._file = 0, 0  # device and inode
        self._head = b""  # first bytes, which hold the time of the first event
        self._offset = 0
        self._splitter = LineSplitter()
        self.files = 0
        """number of journals so far, counting replacements; events of replaced journals no longer count"""
        self.dropped: Counter[str] = Counter()
        """number of lines of this journal that hold no event, by reason"""

    def appended(self, most: int = sys.maxsize) -> Iterator[dict[str, Any]]:
        """Yield the events since the last call. An incomplete last line waits for its end.

        Args:
            most: bytes to read in this call, rounded up to whole blocks.

        Raises:
            OSError: the journal cannot be read.
        """
        with open_journal(self._run_dir) as file:
            found = os.fstat(file.fileno())
            same = self._file == (found.st_dev, found.st_ino) and file.read(len(self._head)) == self._head
            if not same or found.st_size < self._offset:
                self._file = (found.st_dev, found.st_ino)
                self._offset = 0
                self._head = b""
                self._splitter = LineSplitter()
                self.dropped.clear()
                self.files += 1
            if len(self._head) < _HEAD_BYTES:
                file.seek(0)
                self._head = file.read(_HEAD_BYTES)
            file.seek(self._offset)
            self.size = found.st_size
            for line in self._lines(file, most):
                event = parsed(line)
                if isinstance(event, dict):
                    yield event
                else:
                    self.dropped[event] += bool(line.strip())

    def _lines(self, file: BinaryIO, most: int) -> Iterator[bytes]:
        until = self._offset + most
        while self._offset < until and (block := file.read(_BLOCK)):
            self._offset += len(block)
            before = self._splitter.too_long
            yield from self._splitter.split(block)
            self.dropped[TOO_LONG] += self._splitter.too_long - before

    @property
    def was_read(self) -> int:
        """Bytes of the journal that were read."""
        return self._offset


class Hears(Protocol):
    """Something that is built from the events of a journal, in their order."""

    @property
    def resumed(self) -> bool:
        """Whether some event reports a resume, which shows that the ranks report their steps."""

    def hear(self, event: dict[str, Any]) -> None:
        """Process the next event."""


Heard = TypeVar("Heard", bound=Hears)


class FollowedJournal(Generic[Heard]):
    """The journal of a run dir, the state of the job, and something built from all events.

    If the first resume shows that the ranks report their steps, or the journal is replaced, everything is built again.
    """

    def __init__(self, run_dir: Path, make: Callable[[bool], Heard]) -> None:
        """Begin before the first event.

        Args:
            run_dir: the run dir.
            make: creates an empty `Heard`; the argument says whether the ranks report their steps.
        """
        self._run_dir = run_dir
        self._make = make
        self._begin(hooked=False)

    def _begin(self, *, hooked: bool) -> None:
        self._journal = GrowingJournal(self._run_dir)
        self._hooked = hooked
        self.state = RunState(self._run_dir)
        self.heard = self._make(hooked)

    @property
    def dropped(self) -> Counter[str]:
        """Number of lines that hold no event, by reason."""
        return self._journal.dropped

    @property
    def lag(self) -> tuple[int, int] | None:
        """Bytes read and bytes of the journal if `read` has left a rest; else None."""
        journal = self._journal
        return (journal.was_read, journal.size) if journal.was_read < journal.size else None

    def read(self, most: int = sys.maxsize) -> bool:
        """Process what was appended, about `most` bytes. Return whether there was an event.

        After any error other than OSError everything is built again, because only some parts processed the event.

        Raises:
            OSError: the journal cannot be read.
        """
        try:
            return self._read(most)
        except OSError:
            raise
        except Exception:
            self._begin(hooked=False)
            raise

    def _read(self, most: int) -> bool:
        new = False
        for event in self._journal.appended(most):
            if self._journal.files > 1:
                self._begin(hooked=False)
                return self._read(most)
            self.state.hear(event)
            self.heard.hear(event)
            new = True
            if self.heard.resumed and not self._hooked:
                self._begin(hooked=True)
                return self._read(most)
        return new
