"""Checks that the values of a journal's line have the types that readers calculate with. Pure.

A journal may hold lines of another version, or lines that somebody else wrote. Readers skip a line that fails here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MAX_NUMBER = 1e18  # a greater number is nonsense, and may not fit into a float
_STAMP = ("mono", "attempt")
# By event: fields that must be numbers if they exist.
_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "job_started": ("ranks", "max_restarts", "max_hang_restarts"),
    "resumed": ("step",),
    "recovered": ("step",),
    "progress": ("step",),
    "incident": ("step", "rank", "since_progress"),
    "rank_exited": ("step", "rank"),
    "rank_slow": ("rank",),
    "rank_slow_over": ("rank",),
    "stop_announced": ("front",),
    "checkpoint_committed": ("step", "bytes"),
}
# By event: fields that must be numbers or null if they exist.
_NUMBERS_OR_NULL: Mapping[str, tuple[str, ...]] = {
    "job_started": ("jobset_restart",),
    "attempt_started": ("seconds",),
    "attempt_adopted": ("seconds",),
    "resumed": ("seconds", "steps_lost"),
    "recovered": ("seconds",),
    "incident": ("restarts_left", "hang_restarts_left", "delay"),
    "checkpoint_committed": ("seconds",),
}


def sound(line: Mapping[str, Any]) -> bool:
    """Return whether readers can calculate with the line; missing fields do no harm."""
    event = line.get("event")
    if not isinstance(event, str):
        return False
    numbers = [*_STAMP, *_NUMBERS.get(event, ())]
    return (
        all(_is_number(line[name]) for name in numbers if name in line)
        and all(_is_number(line[name]) for name in _NUMBERS_OR_NULL.get(event, ()) if line.get(name) is not None)
        and _is_killed_at(line.get("killed_at"))
    )


def _is_killed_at(said: Any) -> bool:
    """Return whether `killed_at`, which a run that follows a killed one writes, has the right form."""
    return said is None or (
        isinstance(said, Mapping) and all(_is_number(said[name]) for name in ("step", "ago") if name in said)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MAX_NUMBER <= value <= _MAX_NUMBER
