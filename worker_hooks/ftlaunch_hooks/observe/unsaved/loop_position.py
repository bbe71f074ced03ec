"""Says once where a training loop begins anew after a resume: what it goes through, and iterators that it reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import FrameType
from typing import Any

from ftlaunch_hooks.observe.reachable.frame_locals import values_of
from ftlaunch_hooks.observe.reachable.kinds import is_library
from ftlaunch_hooks.observe.reachable.loop_names import LoopNames, loop_names
from ftlaunch_hooks.observe.reachable.positions import is_lost_iterator
from ftlaunch_hooks.observe.reachable.saved_elsewhere import SavedElsewhere
from ftlaunch_hooks.observe.reachable.scopes import forget
from ftlaunch_hooks.observe.unsaved.loop_places import asks_for_step, has_position, lost_sources
from ftlaunch_hooks.process.say import say

Loop = tuple[FrameType, LoopNames]


class LoopPosition:
    """Looks at the functions in whose loops steps are made."""

    def __init__(
        self, objects: Mapping[str, Any], kept: Collection[str], tell: Callable[[Collection[str]], None]
    ) -> None:
        """objects: as attach() takes them. kept: names of variables that an attached object brings back.

        tell: gets names of what begins anew.
        """
        self._objects, self._kept, self._tell = objects, frozenset(kept), tell
        self._place_told = False

    def look(self, frame: FrameType | None, *, own: bool) -> None:
        """Look at the loops around `frame`. own: they are the script's own, without steps()."""
        saved, loops = SavedElsewhere(self._objects), loops_around(frame)
        if not loops:
            return
        lost = lost_sources(loops[0][0], saved)
        begins_anew = own and not lost and self._is_blind(loops, saved)
        for inner, names in loops:
            read = values_of(inner, names.read)
            lost |= {name for name, value in read.items() if is_lost_iterator(value, saved)}
            forget(inner, names.stored)
        self._tell(lost - self._kept)
        if begins_anew and not self._place_told:
            self._place_told = True
            say(
                "the script's own loop does not ask for job.step: after a resume it begins at its first pass, and makes"
                " steps again that were made; begin it at job.step, or use job.steps()"
            )

    def _is_blind(self, loops: Sequence[Loop], saved: SavedElsewhere) -> bool:
        """Whether a loop of the script's own goes through nothing that knows its place, and does not ask for it."""
        if any(not self._kept.isdisjoint(names.read) for _, names in loops):
            return False
        return not has_position(loops[0][0], saved) and not any(asks_for_step(frame) for frame, _ in loops)


def loops_around(innermost: FrameType | None) -> list[Loop]:
    """The functions of the script's that are in a loop now, the innermost first: libraries may be between them."""
    found = []
    frame = innermost
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            names = loop_names(frame.f_code, frame.f_lasti)
            if names.read or names.stored:
                found.append((frame, names))
        frame = frame.f_back
    return found
