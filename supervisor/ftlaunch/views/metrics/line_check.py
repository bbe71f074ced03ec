"""Whether the values of a line of the journal have the types that its readers calculate with. Pure.

A journal may hold lines of another version, or of somebody else. A line that fails here is passed over as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MOST = 1e18  # of any number: more is nonsense, and may be more than a float holds
_STAMP = ("mono", "attempt")
# By event: what is a number wherever the line has it.
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
# The same, or null.
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
    """Whether readers can calculate with the line; fields that it lacks do no harm."""
    event = line.get("event")
    if not isinstance(event, str):
        return False
    numbers = [*_STAMP, *_NUMBERS.get(event, ())]
    return (
        all(_is_number(line[name]) for name in numbers if name in line)
        and all(_is_number(line[name]) for name in _NUMBERS_OR_NULL.get(event, ()) if line.get(name) is not None)
        and _is_killing(line.get("killed_at"))
    )


def _is_killing(said: Any) -> bool:
    """Of `killed_at`, of a run that takes up the job of one that was killed."""
    return said is None or (
        isinstance(said, Mapping) and all(_is_number(said[name]) for name in ("step", "ago") if name in said)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MOST <= value <= _MOST
