"""Draws the state table: a box for each state, a row for each event that changes something, an arrow for each row."""

from __future__ import annotations

from typing import NamedTuple

from drawing import FAINT, INK, arrow, box, heads, page, words

from ftlaunch.policy.state_machine import IGNORED, advance
from ftlaunch.policy.states import ENDS, Event, JobState

# The column at which a state's box begins, and the pixel at which its first row begins; all else is in the table.
_AT = {
    JobState.READY: (0, 20), JobState.RUNNING: (0, 195),
    JobState.EXAMINING: (1, 20), JobState.CLEARING: (1, 260), JobState.BACKOFF: (1, 440),
    JobState.PAUSING: (1, 590), JobState.KEEPING: (0, 560),
    JobState.STOPPING: (2, 20), JobState.LEAVING: (2, 220), JobState.ABANDONING: (2, 420),
    JobState.WRAP_UP: (3, 20), JobState.LAST_GASP: (3, 230), JobState.SALVAGE: (3, 430),
    JobState.DONE: (4, 35), JobState.STOPPED: (4, 250), JobState.FAILED: (4, 445),
}  # fmt: skip
_X = (20, 310, 600, 890, 1150)
_WIDTH = 236  # pixels of a box
_END_WIDTH = 90  # pixels of the box of a state that ends the job
_HEAD = 30  # pixels of a box above its rows
_ROW = 31  # pixels
_HEIGHT = 880
_COLOURS = {
    JobState.RUNNING: "#1565c0", JobState.LAST_GASP: "#2e7d32", JobState.STOPPED: "#2e7d32",
    JobState.LEAVING: "#6d4c41", JobState.STOPPING: "#6d4c41", JobState.CLEARING: "#e65100",
    JobState.BACKOFF: "#e65100", JobState.EXAMINING: "#6a1b9a", JobState.ABANDONING: "#b71c1c",
    JobState.PAUSING: "#37474f", JobState.KEEPING: "#37474f",
    JobState.SALVAGE: "#b71c1c", JobState.FAILED: "#b71c1c", JobState.WRAP_UP: "#00695c", JobState.DONE: "#00695c",
}  # fmt: skip


class Row(NamedTuple):
    """What some events do in one state."""

    events: str
    to: JobState
    actions: str


def rows(state: JobState) -> list[Row]:
    """Return the events that change something in `state`; events that do the same share a row."""
    found: dict[tuple[JobState, str], list[str]] = {}
    for event in Event:
        if event not in IGNORED[state]:
            to, actions = advance(state, event)
            done = ", ".join(action.name.lower().replace("_", " ") for action in actions)
            found.setdefault((to, done), []).append(event.value)
    return [Row(" or ".join(events), to, done) for (to, done), events in found.items()]


def drawing() -> str:
    """Return the picture of the state table as SVG."""
    shapes = [heads(sorted(set(_COLOURS.values())))]
    boxes = [shape for state in JobState for shape in _state(state)]
    arrows = [
        _arrow(state, place, row.to)
        for state in JobState
        for place, row in enumerate(rows(state))
        if row.to is not state
    ]
    note = "An event without a row is ignored in that state; every pair of state and event is listed in the code."
    return page(
        _X[-1] + _END_WIDTH + 20, _HEIGHT, "The state table of a job",
        [*shapes, *arrows, *boxes, words(20, _HEIGHT - 16, note, 12, ink=FAINT)],
    )  # fmt: skip


def _height(state: JobState) -> int:
    return 34 if state in ENDS else _HEAD + _ROW * len(rows(state)) + 4


def _state(state: JobState) -> list[str]:
    column, y = _AT[state]
    x = _X[column]
    colour = _COLOURS.get(state, INK)
    width = _END_WIDTH if state in ENDS else _WIDTH
    shapes = [
        box(x, y, width, _height(state), "#f5f7fa", colour),
        words(x + 10, y + 21, state.value.upper(), 13, bold=True, ink=colour),
    ]
    for place, row in enumerate(rows(state)):
        base = y + _HEAD + _ROW * place + 12
        stays = "stays" if row.to is state else f"→ {row.to.value}"
        does = f": {row.actions}" if row.actions else ""
        shapes.append(words(x + 10, base, row.events, 11))
        shapes.append(words(x + 10, base + 13, stays + does, 10.5, ink=_COLOURS.get(row.to, INK)))
    return shapes


def _arrow(state: JobState, place: int, to: JobState) -> str:
    """Return the arrow from a row to the nearer side of the next state's box."""
    column, y = _AT[state]
    next_column, next_y = _AT[to]
    y0 = y + _HEAD + _ROW * place + 12
    height = _height(to)
    y1 = next_y + min(max(y0 - next_y, 12), height - 12) * 0.5 + 8
    if next_column > column:
        x0, x1, bend = _X[column] + _WIDTH, _X[next_column], 26
        path = f"M{x0} {y0} C{x0 + bend} {y0} {x1 - bend} {y1:g} {x1} {y1:g}"
    elif next_column < column:
        x0, x1, bend = _X[column], _X[next_column] + _WIDTH, 26
        path = f"M{x0} {y0} C{x0 - bend} {y0} {x1 + bend} {y1:g} {x1} {y1:g}"
    else:
        x0 = x1 = _X[column] + _WIDTH
        y1 = next_y + 14
        path = f"M{x0} {y0} C{x0 + 34} {y0} {x1 + 34} {y1:g} {x1} {y1:g}"
    return arrow(path, _COLOURS.get(to, INK), faint=next_column - column > 1)
