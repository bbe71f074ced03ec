"""A journal as it grows: what has been appended since the last look, and no more, is read."""

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
_HEAD = 200  # bytes: a file system gives the inode of a file that was deleted to the next one


class GrowingJournal:
    """Of one run dir."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.size = 0
        """bytes, at the last call"""
        self._file = 0, 0  # device and inode
        self._head = b""  # its first bytes, with the time at which it was begun
        self._offset = 0
        self._splitter = LineSplitter()
        self.files = 0
        """how many journals there were, one in the place of the other: what came before a new one counts no more"""
        self.dropped: Counter[str] = Counter()
        """lines of this journal that hold no event, by the reason"""

    def appended(self, most: int = sys.maxsize) -> Iterator[dict[str, Any]]:
        """The events since the last call. A last line without its end is read when that is written. Raises OSError.

        most: bytes after which it is enough for this call.
        """
        with open_journal(self._run_dir) as file:
            found = os.fstat(file.fileno())
            same = self._file == (found.st_dev, found.st_ino) and file.read(len(self._head)) == self._head
            if not same or found.st_size < self._offset:
                self._file, self._offset, self._head = (found.st_dev, found.st_ino), 0, b""
                self._splitter = LineSplitter()
                self.dropped.clear()
                self.files += 1
            if len(self._head) < _HEAD:
                file.seek(0)
                self._head = file.read(_HEAD)
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
        """Bytes of it that were read."""
        return self._offset


class Hears(Protocol):
    """What is made of the events of a journal."""

    @property
    def resumed(self) -> bool:
        """Some event tells of a resume."""

    def hear(self, event: dict[str, Any]) -> None:
        """Take one in."""


Heard = TypeVar("Heard", bound=Hears)


class FollowedJournal(Generic[Heard]):
    """The journal of a run dir, the state of the job, and what is made of the events, always of all of them."""

    def __init__(self, run_dir: Path, make: Callable[[bool], Heard]) -> None:
        """make: begins anew; it is told whether the ranks say their steps, which a first resume shows."""
        self._run_dir, self._make = run_dir, make
        self._begin(hooked=False)

    def _begin(self, *, hooked: bool) -> None:
        self._journal, self._hooked = GrowingJournal(self._run_dir), hooked
        self.state, self.heard = RunState(self._run_dir), self._make(hooked)

    @property
    def dropped(self) -> Counter[str]:
        """Lines that hold no event, by the reason."""
        return self._journal.dropped

    @property
    def lag(self) -> tuple[int, int] | None:
        """Bytes that were read, and bytes that there were, where `read` has left a rest."""
        journal = self._journal
        return (journal.was_read, journal.size) if journal.was_read < journal.size else None

    def read(self, most: int = sys.maxsize) -> bool:
        """Take in what was appended, about `most` bytes of it; whether there was something. Raises OSError.

        After anything else goes wrong, the journal is read from its beginning: events were taken in by one part alone.
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
