"""Whether the numbers of an event are numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ODD = "odd"
"""why an event is left out: what should be a number is none"""
_LARGEST = 1e15
_NUMBERS = frozenset(
    {"attempt", "bytes", "code", "delay", "front", "hang_restarts_left", "mono", "node", "own", "place", "rank",
     "ranks", "restarts_left", "seconds", "since_progress", "start_time", "step", "steps_lost"}
)  # fmt: skip
_OTHERS = {"ranks_killed": "ranks", "drain_requested": "node"}  # where the name means a list, and a place or a host


def sound(event: dict[str, Any]) -> dict[str, Any] | None:
    """The event without numbers that are null, so that a reader's default counts; None where a number is none.

    A number is neither a text nor infinite, nor beyond what a clock or a disk can count.
    """
    other, empty = _OTHERS.get(str(event["event"])), False
    for name in event.keys() & _NUMBERS:
        value = event[name]
        empty = empty or value is None
        if value is not None and name != other and not is_number(value):
            return None
    killed = event.get("killed_at")
    if killed is not None and not (
        isinstance(killed, Mapping) and all(is_number(killed.get(name, 0)) for name in ("step", "ago"))
    ):
        return None
    return {n: v for n, v in event.items() if v is not None or n not in _NUMBERS} if empty else event


def is_number(value: object) -> bool:
    """Whether it is a finite number that a clock or a disk can count."""
    return isinstance(value, (int, float)) and -_LARGEST < value < _LARGEST


def by_rank(value: object) -> list[tuple[int, float]]:
    """A field of pairs of rank and value, such as `progress.loss`; what is no such pair is left out."""
    rows = value if isinstance(value, list) else []
    return [
        (row[0], float(row[1]))
        for row in rows
        if isinstance(row, list) and len(row) == 2 and isinstance(row[0], int) and is_number(row[1])
    ]
