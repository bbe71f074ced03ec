"""Says once what a training loop keeps from step to step in variables of the script's, where nobody saves them."""

from __future__ import annotations

import inspect
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ftlaunch_hooks.observe.unsaved.beside_state import beside_state
from ftlaunch_hooks.observe.unsaved.loop_names import LoopNames, loop_names
from ftlaunch_hooks.observe.unsaved.loop_places import asks_for_step, has_position, lost_sources
from ftlaunch_hooks.observe.unsaved.saved_elsewhere import SavedElsewhere
from ftlaunch_hooks.observe.unsaved.value_looks import PLAIN, Look, changed_parts, is_library, is_time, look
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.state.random_numbers.generators import kind_of

_NAMED = 8  # names of one line


@dataclass(frozen=True)
class _Value:
    """A variable at a look."""

    now: Any
    look: Look
    is_global: bool

    def changed(self, name: str, first: tuple[int, Look] | None) -> Iterator[str]:
        """What is another than at the first look, or is there since. first: id and look.

        A variable of a function that its loop does not store is another object where the function is called again.
        """
        if self.is_global or (first is not None and first[0] == id(self.now)):
            yield from changed_parts(name, self.look, None if first is None else first[1])


class LoopVariables:
    """Looks at the variables of all functions in whose loops steps are made, at those of their files, and at what
    attached modules hold.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        """objects: as attach() takes them, the frozen ones included."""
        self._objects, self._kept = objects, _kept_variables(objects)
        self._first: dict[object, dict[str, tuple[int, Look]]] = {}
        self._told: set[str] = set()
        self._looks = True
        self._place_told = False

    def look(self, *, own: bool) -> None:
        """Say what is another than at the first look in these loops, or goes from pass to pass whatever it is.

        own: the loop is the script's own, without steps().
        """
        if self._looks:
            try:
                self._look(own=own)
            except Exception as error:  # noqa: BLE001 - objects of a script's may raise anything: training goes on
                self._looks = False
                say(f"cannot look at the variables of the training loop: {error!r}: what is not saved is not told")

    def _look(self, *, own: bool) -> None:
        saved, loops = SavedElsewhere(self._objects), list(_loops())
        stored = {name for frame, names in loops if _is_module(frame) for name in names.stored}
        lost = self._changed("attached", _of_attached(self._objects, saved))
        for frame, names in loops:
            values = _values(frame, names, stored, saved)
            place = frame.f_code, frame.f_lasti
            if place in self._first:
                lost |= _carried(values, names, saved)
            lost |= self._changed(place, values)
        if loops:
            sources = lost_sources(loops[0][0], saved)
            lost |= sources
            self._say_of_place(begins_anew=own and not sources and self._is_blind(loops, saved))
        for frame, names in loops:
            _forget(frame, names)
        self._say(lost - self._told - self._kept)

    def _say_of_place(self, *, begins_anew: bool) -> None:
        if begins_anew and not self._place_told:
            self._place_told = True
            say(
                "the script's own loop does not ask for job.step: after a resume it begins at its first pass, and makes"
                " steps again that were made; begin it at job.step, or use job.steps()"
            )

    def _is_blind(self, loops: Sequence[tuple[FrameType, LoopNames]], saved: SavedElsewhere) -> bool:
        """Whether a loop of the script's own goes through nothing that knows its place, and does not ask for it."""
        if any(not self._kept.isdisjoint(names.read) for _, names in loops):
            return False
        return not has_position(loops[0][0], saved) and not any(asks_for_step(frame) for frame, _ in loops)

    def _changed(self, place: object, values: Mapping[str, _Value]) -> set[str]:
        """What is another than at the first look at this place."""
        first = self._first.get(place)
        if first is None:
            self._first[place] = {name: (id(value.now), value.look) for name, value in values.items()}
            return set()
        return {part for name, value in values.items() for part in value.changed(name, first.get(name))}

    def _say(self, lost: set[str]) -> None:
        if not lost:
            return
        self._told |= lost
        names = sorted(lost)
        listed = ", ".join(f"`{name}`" for name in names[:_NAMED])
        more = f" and {len(names) - _NAMED} more" if names[_NAMED:] else ""
        say(
            f"what the training loop keeps from step to step in {listed}{more} is not saved: after a resume it begins"
            " anew, and the run is not exact where training uses it; attach what has a state_dict(), and put the rest"
            " into an object that has one, or take it from the number of the step"
        )


def _loops() -> Iterator[tuple[FrameType, LoopNames]]:
    """The functions of the script's that are in a loop now, the innermost first: libraries may be between them."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            names = loop_names(frame.f_code, frame.f_lasti)
            if names.read or names.stored:
                yield frame, names
        frame = frame.f_back


def _is_module(frame: FrameType) -> bool:
    return frame.f_locals is frame.f_globals


def _values(
    frame: FrameType, names: LoopNames, stored: set[str], saved: SavedElsewhere
) -> dict[str, _Value]:  # fmt: skip
    """Variables of the function that its loop reads, and all of its module that no module's loop stores."""
    ours = {name: value for name, value in dict(frame.f_globals).items() if name not in stored}
    found = {name: _Value(one, look(one, saved), True) for name, one in ours.items() if not name.startswith("__")}
    local = frame.f_locals
    mine = {name: local[name] for name in names.read if name in local}
    found |= {name: _Value(value, look(value, saved), _is_module(frame)) for name, value in mine.items()}
    return found


def _forget(frame: FrameType, names: LoopNames) -> None:
    """Before Python 3.13 a function keeps the dict that it has shown: what a step has made would live for another one.

    The dict of a module, a class or of exec() is no copy: those are the variables themselves. Numbers and words stay:
    a script may hold the dict, by locals().
    """
    local = frame.f_locals
    if isinstance(local, dict) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        for name in names.stored & local.keys():
            if not isinstance(local[name], PLAIN):
                del local[name]


def _kept_variables(objects: Mapping[str, Any]) -> set[str]:
    """Names of variables that an attached object saves, as it says in `keeps_variables`."""
    return {name for target in objects.values() for name in getattr(target, "keeps_variables", ())}


def _of_attached(objects: Mapping[str, Any], saved: SavedElsewhere) -> dict[str, _Value]:
    return {name: _Value(held, look(held, saved), True) for name, held in beside_state(objects)}


def _carried(values: Mapping[str, _Value], names: LoopNames, saved: SavedElsewhere) -> set[str]:
    """Names of what a pass leaves to the next one, whatever its value does."""
    lost = {name for name in names.carried & values.keys() if _is_state(values[name].now, saved)}
    return lost | {name for name in names.read & values.keys() if _is_lost_iterator(values[name].now, saved)}


def _is_state(value: Any, saved: SavedElsewhere) -> bool:
    """Whether a variable that a step leaves to the next one is something to save."""
    if saved(value) or is_time(value) or kind_of(value) is not None:
        return False
    if isinstance(value, (type, Optimizer, DataLoader)) or inspect.isroutine(value) or hasattr(type(value), "__next__"):
        return False
    return not (isinstance(value, (list, tuple)) and all(saved(one) for one in value))


def _is_lost_iterator(value: Any, saved: SavedElsewhere) -> bool:
    """Where it is, nobody knows: `iter(list)`, or a generator that reads a file."""
    if isinstance(value, io.IOBase) and (value.closed or not value.readable()):
        return False  # a log that the script writes
    return hasattr(type(value), "__next__") and not saved(value) and not saved.is_read_by(value)
