"""Looks at the logs of ranks now and then: notes how long each was when, and keeps each as short as is asked for.

Lines of ranks have no times: `ftctl logs --since` reads the notes. A thread of its own looks, as storage may be silent.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from ftlaunch.history.logs.notes import LengthNote, Of, beginnings, marks_name
from ftlaunch.ranks.log_files import length_to_append_to, size
from ftlaunch.ranks.logs import holes

_EVERY = 10.0  # seconds between looks
_MOST = 100.0  # bytes of notes a second: of very many ranks that all print there are notes less often


class LogMarks:
    """The logs of one attempt on this machine. Storage that takes no notes costs only these."""

    def __init__(self, logs: Mapping[int, Path], newest: int | None = None, every: float = _EVERY) -> None:
        """logs: by rank; all lie in one folder, which is there.

        newest: bytes at the end of each log that are kept, besides holes.HEAD at its beginning; None: all of them.
        """
        self._logs, self._newest, self._every = dict(logs), newest, every
        self._path = next(iter(logs.values())).parent / marks_name(min(logs))
        self._sizes: dict[int, int] = {}
        self._punched: dict[int, int] = {}
        self._ends: dict[int, tuple[int, ...]] = {}  # of lives before this one, as ranks began again since
        self._earlier: dict[int, list[int]] = {}  # the same, as the notes of earlier runs say it
        self._noted = 0.0  # monotonic time until which the notes have had their share
        self._begun: deque[LengthNote] = deque()  # notes that are to be written at once
        self._is_over = False
        self._wake = threading.Event()
        with contextlib.suppress(RuntimeError):  # no thread can be started: no notes
            threading.Thread(target=self._run, name="ftlaunch-logs", daemon=True).start()

    def begin(self, lengths: Mapping[int, int], of: Of) -> None:
        """Ranks are about to be started. Never waits.

        lengths: of their logs, in which others may have written before.
        """
        for rank, length in lengths.items():
            self._ends[rank] = (*self._ends.get(rank, ()), length)
        self._sizes = self._sizes | dict(lengths)
        self._begun.append(LengthNote(time.time(), lengths, of))
        self._wake.set()

    def end(self) -> None:
        """The ranks have ended: a last look, and no more. Waits for nothing."""
        self._is_over = True
        self._wake.set()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            self._read_earlier()
            due = 0.0
            while True:
                last = self._is_over
                while self._begun:
                    self._append(self._begun.popleft())
                if last or time.monotonic() >= due:
                    self._look(last)
                    due = time.monotonic() + self._every
                if last:
                    return
                self._wake.wait(max(due - time.monotonic(), 0.0))
                self._wake.clear()

    def _read_earlier(self) -> None:
        """Raises OSError."""
        for note in beginnings(self._path.parent) if self._newest is not None else ():
            for rank in note.lengths.keys() & self._logs.keys():
                self._earlier.setdefault(rank, []).append(note.lengths[rank])

    def _look(self, last: bool) -> None:
        """Raises OSError."""
        sizes = {rank: size(log) for rank, log in self._logs.items()}
        now = time.monotonic()
        if last or now >= self._noted:
            self._noted = now + self._note({rank: s for rank, s in sizes.items() if self._sizes.get(rank) != s}) / _MOST
            self._sizes = sizes
        if self._newest is not None:
            for rank, length in sizes.items():
                done = self._punched.get(rank, 0)
                ends = *self._earlier.get(rank, ()), *self._ends.get(rank, ())
                if found := holes.to_punch(length, self._newest, done, ends):
                    self._punch(rank, found)

    def _note(self, grown: Mapping[int, int]) -> int:
        """Returns how many bytes the note takes."""
        if not grown:
            return 0
        return self._append(LengthNote(time.time(), grown))

    def _append(self, note: LengthNote) -> int:
        line = note.line()
        length_to_append_to(self._path)
        with self._path.open("ab") as file:
            file.write(line)
        return len(line)

    def _punch(self, rank: int, found: Sequence[tuple[int, int]]) -> None:
        fd = os.open(self._logs[rank], os.O_WRONLY | os.O_CLOEXEC)
        try:
            for begin, length in found:
                holes.punch(fd, begin, length)
        finally:
            os.close(fd)
        self._punched[rank] = sum(found[-1])
