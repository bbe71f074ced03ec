"""Whether the fields of an event are what their names mean. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeGuard

ODD = "odd"
"""why a field is left out: it holds something else than what its name means"""
_LARGEST = 1e15
_REAL = (float, int)  # of JSON; a truth value is none
_NUMBERS = frozenset(
    {"attempt", "bytes", "code", "delay", "front", "hang_restarts_left", "jobset_restart", "mono", "node", "own",
     "place", "rank", "ranks", "restarts", "restarts_left", "seconds", "since_progress", "slots", "start_time", "step",
     "steps_lost"}
)  # fmt: skip
_TEXTS = frozenset(
    {"action", "address", "autopsy", "by", "cause", "error", "health", "host", "job_id", "kind", "log_dir", "path",
     "run_dir", "sentence", "signature", "source", "t", "trace", "verdict", "why"}
)  # fmt: skip
_OTHERS = {"ranks_killed": "ranks", "drain_requested": "node"}  # where the name means a list, and a place or a host


def sound(event: Mapping[str, Any], dropped: Counter[str] | None = None) -> Mapping[str, Any]:
    """The event without the fields that hold something else than their names mean, so that readers' defaults count.

    A number is neither a text nor infinite, nor beyond what a clock or a disk can count. A number that is null is left
    out as well: it is not known. dropped: counts the events that lost more than a null.
    """
    other, odd, without = _OTHERS.get(str(event["event"])), False, None
    for name, value in event.items():
        kind = type(value)
        if name in _NUMBERS:
            fits = ((kind is int or kind is float) and -_LARGEST < value < _LARGEST) or name == other
        elif name in _TEXTS:
            fits = kind is str or value is None
        else:
            fits = name != "killed_at" or _is_killed_at(value)
        if not fits:
            odd = odd or value is not None
            without = without or set()
            without.add(name)
    if without is None:
        return event
    if odd and dropped is not None:
        dropped[ODD] += 1
    return {name: value for name, value in event.items() if name not in without}


def _is_killed_at(value: object) -> bool:
    """None, or by when the ranks of a killed supervisor had made which step."""
    return value is None or (
        isinstance(value, Mapping) and all(is_number(value.get(name, 0)) for name in ("step", "ago"))
    )


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a finite number that a clock or a disk can count."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST


def by_rank(value: object) -> list[tuple[int, float]]:
    """A field of pairs of rank and value, such as `progress.loss`; what is no such pair is left out."""
    rows = value if isinstance(value, list) else []
    return [
        (row[0], row[1])
        for row in rows
        if type(row) is list
        and len(row) == 2
        and type(row[0]) is int
        and type(row[1]) in _REAL
        and -_LARGEST < row[1] < _LARGEST
    ]
