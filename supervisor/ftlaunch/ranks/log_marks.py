"""Observes the logs of running ranks from time to time: notes how long each was when, and keeps each short.

Lines of ranks carry no times, so `ftctl logs --since` reads the notes instead. All files are touched in a daemon thread
of this module, because storage may be silent; the public methods are called in the event loop and never wait.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from ftlaunch.history.log_notes import LengthNote, Of, beginnings, marks_name
from ftlaunch.ranks import log_holes
from ftlaunch.ranks.log_files import length_to_append_to
from ftlaunch_contract.files.regular_file import file_size

_PERIOD_SECONDS = 10.0  # between observations
_NOTE_RATE = 100.0  # bytes of notes a second; if very many ranks print all the time, notes are written less often


class LogMarks:
    """The logs of one attempt on this machine. If storage takes no notes, the job goes on without them."""

    def __init__(self, logs: Mapping[int, Path], newest: int | None = None, every: float = _PERIOD_SECONDS) -> None:
        """Start the thread that observes the logs.

        Args:
            logs: the logs by rank. All lie in one folder, which exists.
            newest: bytes to keep at the end of each log, besides `log_holes.HEAD` at its beginning; None keeps all.
            every: seconds between observations.
        """
        self._logs = dict(logs)
        self._newest = newest
        self._every = every
        self._path = next(iter(logs.values())).parent / marks_name(min(logs))
        self._sizes: dict[int, int] = {}  # bytes of each log as last noted
        self._punched: dict[int, int] = {}  # end of the last hole, by rank
        self._starts: dict[int, tuple[int, ...]] = {}  # by rank: length of its log at each start in this run
        self._earlier: dict[int, list[int]] = {}  # the same, by the notes of earlier runs
        self._next_note = 0.0  # monotonic time before which no note is written, to keep to _NOTE_RATE
        self._begun: deque[LengthNote] = deque()  # notes to be written at once; filled by the event loop
        self._is_over = False
        self._wake = threading.Event()
        with contextlib.suppress(RuntimeError):  # no thread can be started: there are no notes
            threading.Thread(target=self._run, name="ftlaunch-logs", daemon=True).start()

    def begin(self, lengths: Mapping[int, int], of: Of) -> None:
        """Note that ranks are about to be started. Never waits.

        Args:
            lengths: bytes of their logs, to which other processes may have written before.
            of: whether these are all ranks of this node or a single one.
        """
        for rank, length in lengths.items():
            self._starts[rank] = (*self._starts.get(rank, ()), length)
        self._sizes = self._sizes | dict(lengths)
        self._begun.append(LengthNote(time.time(), lengths, of))
        self._wake.set()

    def end(self) -> None:
        """Have the thread make a last observation and end, because the ranks have ended. Never waits."""
        self._is_over = True
        self._wake.set()

    def _run(self) -> None:
        """Observe the logs until `end` is called, or until storage fails. Runs in the thread."""
        with contextlib.suppress(OSError):
            self._read_earlier()
            due = 0.0
            while True:
                is_last = self._is_over
                while self._begun:
                    self._append(self._begun.popleft())
                if is_last or time.monotonic() >= due:
                    self._observe(is_last)
                    due = time.monotonic() + self._every
                if is_last:
                    return
                self._wake.wait(max(due - time.monotonic(), 0.0))
                self._wake.clear()

    def _read_earlier(self) -> None:
        """Read from the notes of earlier runs where in the logs ranks were started. Raises OSError."""
        if self._newest is None:
            return
        for note in beginnings(self._path.parent):
            for rank in note.lengths.keys() & self._logs.keys():
                self._earlier.setdefault(rank, []).append(note.lengths[rank])

    def _observe(self, is_last: bool) -> None:
        """Note which logs have grown, and punch holes into those that are too long. Raises OSError."""
        sizes = {rank: file_size(log) for rank, log in self._logs.items()}
        now = time.monotonic()
        if is_last or now >= self._next_note:
            grown = {rank: length for rank, length in sizes.items() if self._sizes.get(rank) != length}
            written = self._append(LengthNote(time.time(), grown)) if grown else 0
            self._next_note = now + written / _NOTE_RATE
            self._sizes = sizes
        if self._newest is not None:
            for rank, length in sizes.items():
                ends = (*self._earlier.get(rank, ()), *self._starts.get(rank, ()))
                done = self._punched.get(rank, 0)
                if found := log_holes.to_punch(length=length, newest=self._newest, done=done, ends=ends):
                    self._punch(rank, found)

    def _append(self, note: LengthNote) -> int:
        """Write a note, and return its length in bytes. Raises OSError."""
        line = note.line()
        length_to_append_to(self._path)  # raises if it is no regular file: a FIFO would block
        with self._path.open("ab") as file:
            file.write(line)
        return len(line)

    def _punch(self, rank: int, found: Sequence[tuple[int, int]]) -> None:
        """Punch holes, given as pairs of offset and length, into a log. Raises OSError."""
        fd = os.open(self._logs[rank], os.O_WRONLY | os.O_CLOEXEC)
        try:
            for begin, length in found:
                log_holes.punch(fd, begin, length)
        finally:
            os.close(fd)
        begin, length = found[-1]
        self._punched[rank] = begin + length
