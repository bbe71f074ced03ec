"""What the newest run of a supervisor has told, read from the ends of its journal.

Lines are looked for as bytes, from the end: of megabytes a few lines are parsed.
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
"""bytes at the end of a journal in which everything is looked for"""
_FIRST = 64 << 10  # bytes at its end that are read first, and at its beginning; no start is longer
STEPS = frozenset({"progress", "recovered", "resumed", "rank_exited", "checkpoint_committed", "job_stopped"})
"""the events that tell a step that ranks had reached"""

_START, _END, _STEP = "job_started", "end", "step"
_KINDS = {_START: frozenset({_START}), _END: ENDS, _STEP: STEPS, "incident": frozenset({"incident"})}
"""the names of the events of which the newest is shown"""
Event = Mapping[str, Any]
Found = tuple[int, Event]
"""the place of a line among the bytes that were read, and its event"""


def load_newest(run_dir: Path) -> Run:
    """A run with the newest of its events of each kind that a list shows, in their order. Raises CannotFind.

    A start that lies further back than NEWEST bytes is looked for only where the run has no end; of an ended one the
    journal's first start stands for it.
    """
    try:
        with open_journal(run_dir) as file:
            events = _newest_events(file)
    except OSError as error:
        raise unreadable(run_dir / EVENTS, error) from error
    return Run(run_dir, events)


def _newest_events(file: BinaryIO) -> list[Event]:
    fd, size = file.fileno(), os.fstat(file.fileno()).st_size
    found: dict[str, Found] = {}
    for length in (_FIRST, NEWEST):
        begin = max(0, size - length)
        if missing := _KINDS.keys() - found.keys():
            data = os.pread(fd, length, begin)
            found |= {kind: (begin + one[0], one[1]) for kind in missing if (one := _last_of(data, kind)) is not None}
        if begin == 0:
            break
    if _START not in found and begin:
        start = _last(os.pread(fd, _FIRST, 0), _START) if _END in found else None
        start = start or _start_before(fd, begin)
        found |= {} if start is None else {_START: (-1, start[1])}
    if _START in found and _END in found and found[_END][0] < found[_START][0]:
        del found[_END]
    return [event for _, event in sorted(found.values(), key=_place)]


def _place(found: Found) -> int:
    return found[0]


def _last_of(data: bytes, kind: str) -> Found | None:
    counts = tells_a_step if kind == _STEP else _any
    found = (one for name in _KINDS[kind] if (one := _last(data, name, counts)) is not None)
    return max(found, key=_place, default=None)


def tells_a_step(event: Mapping[str, Any]) -> bool:
    """Whether an event has a step that ranks had reached."""
    step = event.get("step")
    return event["event"] in STEPS and isinstance(step, int) and step >= 0


def _any(_: Event) -> bool:
    return True


def _last(data: bytes, name: str, counts: Callable[[Event], bool] = _any) -> Found | None:
    """The last line that is an event of that name, and counts; the first line may be torn: the data may begin in it."""
    word, end = f'"{name}"'.encode(), len(data)
    while (at := data.rfind(word, 0, end)) >= 0:
        begin = data.rfind(b"\n", 0, at) + 1
        stop = data.find(b"\n", at)
        whole = parsed(data[begin : stop if stop >= 0 else len(data)])
        if isinstance(whole, dict) and whole["event"] == name and counts(event := sound(whole)):
            return begin, event
        end = begin  # the word stands in another event
    return None


def _start_before(fd: int, end: int) -> Found | None:
    """The last start before an offset. The pieces overlap: a line that begins in one and ends in the next is whole."""
    while end > 0:
        begin = max(0, end - NEWEST)
        if (found := _last(os.pread(fd, end - begin + _FIRST, begin), _START)) is not None:
            return found
        end = begin
    return None
