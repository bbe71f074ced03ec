"""Reads the newest events of a supervisor's newest run from the end of its journal, for lists of many jobs.

Lines are searched as bytes from the end, so that only a few lines of megabytes are parsed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ftlaunch.history.journal import EVENTS, open_journal, parsed
from ftlaunch.history.lines.numbers import sound
from ftlaunch.history.runs import ENDS, Run, unreadable

NEWEST = 4 << 20
"""bytes at the end of a journal that are searched for every kind of event"""
_FIRST = 64 << 10  # bytes at the end of a journal that are searched first; also longer than any start
STEPS = frozenset({"progress", "recovered", "resumed", "rank_exited", "checkpoint_committed", "job_stopped"})
"""names of the events with a step that ranks had reached"""

_START = "job_started"
_END = "end"
_STEP = "step"
# For each kind of which the newest event is shown, the names of the events.
_KINDS = {_START: frozenset({_START}), _END: ENDS, _STEP: STEPS, "incident": frozenset({"incident"})}
Event = Mapping[str, Any]
Found = tuple[int, Event]
"""the offset of a line in the bytes that were read, and its event"""


def load_newest(run_dir: Path) -> Run:
    """Return a run with only its newest event of each kind that a list shows, in the order of the journal.

    A start that lies further back than NEWEST bytes is searched only if the run has no end. For an ended run, the
    journal's first start takes its place.

    Raises:
        CannotFind: the journal cannot be read.
    """
    try:
        with open_journal(run_dir) as file:
            events = _newest_events(file)
    except OSError as error:
        raise unreadable(run_dir / EVENTS, error) from error
    return Run(run_dir, events)


def _newest_events(file: BinaryIO) -> list[Event]:
    """Return the newest event of each kind, in the order of the journal. Raises OSError."""
    fd = file.fileno()
    size = os.fstat(fd).st_size
    found: dict[str, Found] = {}
    for length in (_FIRST, NEWEST):
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
        start = _find_last(os.pread(fd, _FIRST, 0), _START) if _END in found else None
        start = start or _find_start_before(fd, begin)
        if start is not None:
            found[_START] = (-1, start[1])
    if _START in found and _END in found and found[_END][0] < found[_START][0]:
        del found[_END]
    return [event for _, event in sorted(found.values(), key=_offset)]


def _offset(found: Found) -> int:
    return found[0]


def _find_newest(data: bytes, kind: str) -> Found | None:
    """Return the last line in `data` with an event of this kind; None if there is none."""
    fits = tells_a_step if kind == _STEP else _fits_always
    candidates = [_find_last(data, name, fits) for name in _KINDS[kind]]
    return max((found for found in candidates if found is not None), key=_offset, default=None)


def tells_a_step(event: Mapping[str, Any]) -> bool:
    """Return whether an event has a step that ranks had reached."""
    step = event.get("step")
    return event["event"] in STEPS and isinstance(step, int) and step >= 0


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
        end = begin  # the word is a part of another event
    return None


def _find_start_before(fd: int, end: int) -> Found | None:
    """Return the last start that begins before an offset; None if there is none. Raises OSError.

    The journal is read in pieces from the back. They overlap, so that a start that begins in one piece and ends in the
    next is read whole.
    """
    while end > 0:
        begin = max(0, end - NEWEST)
        if (found := _find_last(os.pread(fd, end - begin + _FIRST, begin), _START)) is not None:
            return found
        end = begin
    return None
