"""What events of a journal mean to all its readers: which names matter, and whether fields hold what they should. Pure.

Journals may be damaged or edited by hand, so every reader drops unsound fields (`sound`) before using an event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeGuard

Event = Mapping[str, Any]
"""an event with at least its name"""
ENDS = frozenset({"job_finished", "job_stopped", "job_failed"})
"""names of the events that end a run of the supervisor"""
STEPS = frozenset({"progress", "recovered", "resumed", "rank_exited", "checkpoint_committed", "job_stopped"})
"""names of the events with a step that ranks had reached"""
_MADE = frozenset({"progress", "recovered", "checkpoint_committed"})
"""events after which all ranks have completed their `step`"""

ODD = "odd"
"""why an event lost a field: the field does not hold what its name means"""
_LARGEST = 1e15  # seconds or bytes; no clock and no disk counts further
_REAL = (float, int)  # the exact types of JSON numbers; bool is not among them
_NUMBERS = frozenset(
    {"attempt", "bytes", "code", "delay", "front", "hang_restarts_left", "jobset_restart", "mono", "node", "own",
     "place", "rank", "ranks", "restarts", "restarts_left", "seconds", "since_progress", "slots", "start_time", "step",
     "steps_lost"}
)  # fmt: skip
_TEXTS = frozenset(
    {"action", "address", "autopsy", "by", "cause", "error", "health", "host", "job_id", "kind", "log_dir", "path",
     "run_dir", "sentence", "signature", "source", "t", "trace", "verdict", "why"}
)  # fmt: skip
# Events in which a field of a number's name may hold something else: a list of ranks, a place or a host, a node's name.
_EXCEPTIONS = {
    "ranks_killed": "ranks",
    "drain_requested": "node",
    "gpu_memory_freed": "node",
    "gpu_memory_held": "node",
}


def has_step(event: Event) -> bool:
    """Return whether an event has a step that ranks had reached."""
    step = event.get("step")
    return event["event"] in STEPS and isinstance(step, int) and step >= 0


def sound(event: Event, dropped: Counter[str] | None = None) -> Event:
    """Return the event without the fields that do not hold what their names mean, so that readers' defaults apply.

    A number must be a finite JSON number that a clock or a disk can count. A number that is null is unknown, and is
    left out as well.

    Args:
        event: an event with its name.
        dropped: counts under ODD the events that lost a field other than null.
    """
    exception = _EXCEPTIONS.get(str(event["event"]))
    is_odd = False
    bad_fields: set[str] | None = None  # made on demand, as nearly all of very many events are sound
    for name, value in event.items():
        kind = type(value)
        if name in _NUMBERS:
            fits = ((kind is int or kind is float) and -_LARGEST < value < _LARGEST) or name == exception
        elif name in _TEXTS:
            fits = kind is str or value is None
        else:
            fits = name != "killed_at" or _is_killed_at(value)
        if not fits:
            is_odd = is_odd or value is not None
            bad_fields = bad_fields or set()
            bad_fields.add(name)
    if bad_fields is None:
        return event
    if is_odd and dropped is not None:
        dropped[ODD] += 1
    return {name: value for name, value in event.items() if name not in bad_fields}


def _is_killed_at(value: object) -> bool:
    """Return whether a value fits `killed_at`: None, or the last step of a killed supervisor's ranks and its age."""
    return value is None or (
        isinstance(value, Mapping) and all(is_number(value.get(name, 0)) for name in ("step", "ago"))
    )


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number that a clock or a disk can count."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST


def by_rank(value: object) -> list[tuple[int, float]]:
    """Return the pairs of rank and number in a field such as `progress.loss`, without anything that is no such pair."""
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


class NewestStep:
    """Follows the newest completed step through the events of a run dir. A resume may lower the step."""

    EVENTS = _MADE | {"resumed", "job_started", "job_finished"}
    """names of the events that `apply` uses"""

    def __init__(self) -> None:
        """Start without a step."""
        self.step: int | None = None
        """newest completed step; None if the journal has none"""
        self._is_finished = False  # whether the job was done, so that the next run in this run dir is another job

    def apply(self, name: str, fields: Mapping[str, Any]) -> None:
        """Update the state by one event. Call with the events in their order.

        Args:
            name: name of the event.
            fields: fields of the event.
        """
        if name == "job_finished":
            self._is_finished = True
        elif name == "job_started":
            if self._is_finished:
                self.step = None
            self._is_finished = False
        elif (name in _MADE or name == "resumed") and is_number(step := fields.get("step")):
            before = -1 if self.step is None or name == "resumed" else self.step
            self.step = max(before, int(step))
