"""Writes and reads the journal of a run dir, events.jsonl: one JSON object a line.

The supervisor appends events. Commands, dashboards and metrics read them, also while the supervisor writes: each line
is one write, so that only the last line can be unfinished, or torn by a crash. All readers are here. They read the
whole journal (`stream_events`), follow it as it grows (`JournalFollower`), or find the newest run from its end
(`newest_events`).

Each event has these fields, besides its own (docs/guide/journal.md lists them):

- `t`: wall time as ISO 8601 in UTC, with milliseconds.
- `mono`: monotonic seconds of the machine that wrote the event.
- `attempt`: number of the attempt, from 0.
- `event`: the event's name.

A journal may be damaged, edited by hand, or replaced by another one: a line of any length is read
in bounded memory, and a line that holds no event is passed over.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ftlaunch.common.finite import without_nan
from ftlaunch.common.line_splitter import LONGEST_LINE, LineSplitter
from ftlaunch.history.events import ENDS, STEPS, Event, has_step, sound
from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.regular_file import open_regular

EVENTS = "events.jsonl"
TORN = "torn"
"""why a line is left out: a crash has torn it, so that it is no JSON"""
TOO_LONG = "too long"
"""why a line is left out: it is longer than LONGEST_LINE"""
STRANGE = "no event"
"""why a line is left out: it is JSON, but no event with a name"""
NEWEST = 4 << 20
"""size in bytes of the end of a journal that is searched for every kind of event"""
BLOCK = 64 << 10
"""size in bytes of one read"""
_HEAD_BYTES = 200
"""size of the journal's beginning that tells two journals apart"""
FIRST = 64 << 10
"""size in bytes of the end of a journal that is searched first; a `job_started` line is never longer"""
_NAME = re.compile(rb'"event"\s*:\s*"(\w+)"')  # far faster than parsing the line; also finds names of nested events
_START = "job_started"
_END = "end"
_STEP = "step"
# For each kind of which the newest event is shown, the names of the events.
_KINDS = {_START: frozenset({_START}), _END: ENDS, _STEP: STEPS, "incident": frozenset({"incident"})}
Found = tuple[int, Event]
"""The offset of a line, and its event.

The offset counts from the beginning of the bytes that were searched. In `_newest_events` it counts from the beginning
of the journal, and is -1 for a start that lies before all other events found."""


class Journal:
    """Appends events to a journal. Each line is one write, so that a crash tears at most the last line.

    `append` may run in another thread than `stamped` and `attempt`. The supervisor stamps events in its main thread,
    and appends them in the thread that writes to the run dir.
    """

    def __init__(self, run_dir: Path) -> None:
        """Open `<run-dir>/events.jsonl`, which is created if it is missing. Raises OSError."""
        self.path = run_dir / EVENTS
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.attempt = 0
        """number of the attempt with which events are stamped"""
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
        """Return an event with the times `t` and `mono` of now, the attempt, and its own fields.

        Numbers that are not finite become None.
        """
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


# --- reading ------------------------------------------------------------------------------------------------


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """Return all events of a run dir's journal, without unsound lines. Raises OSError if the journal cannot be read."""
    return list(stream_events(run_dir))


def stream_events(run_dir: Path, dropped: Counter[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the events of a run dir's journal one by one, so that a long journal is never in memory as a whole.

    A last line without a newline counts as a line.

    Args:
        run_dir: the run dir.
        dropped: counts the lines that are left out, by the reason (TORN, TOO_LONG, STRANGE). Blank lines do not count.

    Raises:
        OSError: the journal cannot be read. Raised when the first event is requested.
    """
    follower = JournalFollower(run_dir)
    if dropped is not None:
        follower.dropped = dropped
    yield from follower.events(last=True)


class JournalFollower:
    """Reads a growing journal: each call of `events` reads only what was appended since the call before.

    The follower notices when another journal has taken the place of the one it has read, or when the journal was
    truncated, and begins again at the beginning. Used by one thread at a time.
    """

    def __init__(
        self,
        run_dir: Path,
        names: Collection[str] | None = None,
        *,
        on_replaced: Callable[[], object] | None = None,
        open_file: Callable[[Path], BinaryIO] = open_journal,
        keeps_deleted: bool = False,
    ) -> None:
        """Begin before the first event; nothing is opened yet.

        Args:
            run_dir: the run dir.
            names: names of the events to yield; lines without any of them are not parsed. None for all events.
            on_replaced: called before the first event of a journal that has replaced the one read so far. What was
                built from earlier events no longer counts.
            open_file: opens the journal of a run dir.
            keeps_deleted: keep the file open between calls, and go on with it after its name was deleted, because its
                writer goes on as well. Without it a deleted journal is a FileNotFoundError.
        """
        self._run_dir = run_dir
        self._names = None if names is None else frozenset(names)
        self._encoded_names = frozenset(name.encode() for name in names or ())
        self._on_replaced = on_replaced
        self._open_file = open_file
        self._keeps_deleted = keeps_deleted
        self._kept: BinaryIO | None = None
        self._identity: tuple[int, int] | None = None  # device and inode; None before the first call
        self._head = b""  # first bytes, which hold the time of the first event
        self._splitter = LineSplitter(LONGEST_LINE)
        self.offset = 0
        """bytes of the journal that were read so far"""
        self.size = 0
        """size of the journal in bytes at the last call"""
        self.dropped: Counter[str] = Counter()
        """Number of lines of this journal that hold no event, by reason (TORN, TOO_LONG, STRANGE).

        Blank lines do not count. Where only some names are wanted, a line without any of the names is not parsed, and
        counts only if it is too long."""

    def events(self, most: int = sys.maxsize, *, last: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the events since the last call. An unfinished last line waits for its end.

        The iterator must be exhausted: a caller that stops early loses the events of the block that was read.

        Args:
            most: bytes to read in this call, rounded up to whole blocks.
            last: nothing more will come, so that an unfinished last line is taken as a line.

        Raises:
            OSError: the journal cannot be read. Events that were yielded before stay valid.
        """
        file = self._open()
        try:
            fd = file.fileno()
            self._restart_if_replaced(fd)
            until = self.offset + most
            while self.offset < until and (block := os.pread(fd, BLOCK, self.offset)):
                self.offset += len(block)
                before = self._splitter.too_long
                lines = self._splitter.split(block)
                self.dropped[TOO_LONG] += self._splitter.too_long - before
                for line in lines:
                    if (event := self._event_of(line)) is not None:
                        yield event
            if last and (event := self._event_of(self._splitter.flush())) is not None:
                yield event
        finally:
            if file is not self._kept:
                file.close()

    def close(self) -> None:
        """Close the file that is kept open, if there is one."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _open(self) -> BinaryIO:
        """Return the journal that now has the name, or the deleted one that is kept. Raises OSError."""
        try:
            file = self._open_file(self._run_dir)
        except FileNotFoundError:
            if self._kept is None:
                raise
            return self._kept
        if self._keeps_deleted:
            self.close()
            self._kept = file
        return file

    def _restart_if_replaced(self, fd: int) -> None:
        """Compare the open file with the one that was read so far, and begin at its beginning if it is another one.

        The first bytes are compared as well as the inode, because file systems reuse the inode of a deleted file.
        """
        found = os.fstat(fd)
        identity = found.st_dev, found.st_ino
        is_same = (
            identity == self._identity
            and found.st_size >= self.offset
            and os.pread(fd, len(self._head), 0) == self._head
        )
        if not is_same:
            is_first = self._identity is None
            self._identity = identity
            self.offset = 0
            self._head = b""
            self._splitter = LineSplitter(LONGEST_LINE)
            if not is_first:
                self.dropped.clear()
                if self._on_replaced is not None:
                    self._on_replaced()
        if len(self._head) < _HEAD_BYTES:
            self._head = os.pread(fd, _HEAD_BYTES, 0)
        self.size = found.st_size

    def _event_of(self, line: bytes) -> dict[str, Any] | None:
        """Return the event of a line, or None. A parsed line that holds no event is counted, unless it is blank."""
        if self._names is not None and self._encoded_names.isdisjoint(_NAME.findall(line)):
            return None
        event = parsed(line)
        if isinstance(event, str):
            if line.strip():
                self.dropped[event] += 1
            return None
        is_wanted = self._names is None or event["event"] in self._names
        return event if is_wanted else None


def parsed(line: bytes) -> dict[str, Any] | str:
    """Return the event of a line, or the reason why the line holds none: TORN or STRANGE."""
    try:
        event = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return TORN
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else STRANGE


# --- the newest run -----------------------------------------------------------------------------------------


def newest_events(run_dir: Path, *, is_any_start_enough: bool = False) -> list[Event]:
    """Return the newest start, end, step and incident of a run dir's journal, in the order of the journal.

    A kind without an event is left out, and so is an end that is older than the newest start. Only the last NEWEST
    bytes are searched for ends, steps and incidents; the start of the newest run is found wherever it lies. The search
    is for names in the bytes, so that only a few lines of megabytes are parsed.

    Args:
        run_dir: the run dir.
        is_any_start_enough: the journal's first start may take the place of the start of a run that has ended, so that
            a list of many jobs reads little.

    Raises:
        OSError: the journal cannot be read.
    """
    with open_journal(run_dir) as file:
        return _newest_events(file.fileno(), is_any_start_enough=is_any_start_enough)


def _newest_events(fd: int, *, is_any_start_enough: bool) -> list[Event]:
    size = os.fstat(fd).st_size
    found: dict[str, Found] = {}
    for length in (FIRST, NEWEST):
        begin = max(0, size - length)
        if missing := _KINDS.keys() - found.keys():
            data = os.pread(fd, length, begin)
            for kind in missing:
                newest = _find_newest(data, kind)
                if newest is not None:
                    offset, event = newest
                    found[kind] = (begin + offset, event)
        if begin == 0:
            break
    if _START not in found and begin:
        start = None
        if is_any_start_enough and _END in found:
            start = _find_last(os.pread(fd, FIRST, 0), _START)
        if start is None:
            start = _find_start_before(fd, begin)
        if start is not None:
            found[_START] = (-1, start[1])
    if _START in found and _END in found and found[_END][0] < found[_START][0]:
        del found[_END]
    return [event for _, event in sorted(found.values(), key=_offset)]


def _offset(found: Found) -> int:
    return found[0]


def _find_newest(data: bytes, kind: str) -> Found | None:
    """Return the last line in `data` with an event of this kind; None if there is none."""
    fits = has_step if kind == _STEP else _fits_always
    candidates = [_find_last(data, name, fits) for name in _KINDS[kind]]
    return max((found for found in candidates if found is not None), key=_offset, default=None)


def _fits_always(_: Event) -> bool:
    return True


def _find_last(data: bytes, name: str, fits: Callable[[Event], bool] = _fits_always) -> Found | None:
    """Return the last line in `data` that holds a fitting event; None if there is none.

    Args:
        data: a part of a journal; its first line may lack its beginning.
        name: name of the event.
        fits: returns whether an event of that name fits.
    """
    word = f'"{name}"'.encode()
    end = len(data)
    while (at := data.rfind(word, 0, end)) >= 0:
        begin = data.rfind(b"\n", 0, at) + 1
        stop = data.find(b"\n", at)
        whole = parsed(data[begin : stop if stop >= 0 else len(data)])
        if isinstance(whole, dict) and whole["event"] == name and fits(event := sound(whole)):
            return begin, event
        end = begin  # the name is a part of another event
    return None


def _find_start_before(fd: int, end: int) -> Found | None:
    """Return the last start that begins before an offset; None if there is none. Raises OSError.

    The journal is read in pieces from the back. They overlap, so that a start that begins in one piece and ends in the
    next is read whole.
    """
    while end > 0:
        begin = max(0, end - NEWEST)
        if (found := _find_last(os.pread(fd, end - begin + FIRST, begin), _START)) is not None:
            return found
        end = begin
    return None
