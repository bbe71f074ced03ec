"""Tells the user once where a training loop begins anew after a resume: its source, and iterators that it reads.

UnsavedState calls a LoopPosition in the thread that trains.
"""

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
    """Checks the functions in whose loops steps are made."""

    def __init__(
        self, objects: Mapping[str, Any], kept: Collection[str], report_lost: Callable[[Collection[str]], None]
    ) -> None:
        """Begin with nothing reported.

        Args:
            objects: attached objects by name.
            kept: names of variables that attached objects bring back.
            report_lost: called with the names of iterators that begin anew.
        """
        self._objects = objects
        self._kept = frozenset(kept)
        self._report_lost = report_lost
        self._is_place_reported = False

    def check(self, frame: FrameType | None, *, own: bool) -> None:
        """Check the loops around `frame`. own: whether these are the script's own loops, without steps()."""
        saved = SavedElsewhere(self._objects)
        loops = enclosing_loops(frame)
        if not loops:
            return
        lost = lost_sources(loops[0][0], saved)
        is_restarted = own and not lost and self._is_blind(loops, saved)
        for inner, names in loops:
            read = values_of(inner, names.read)
            lost |= {name for name, value in read.items() if is_lost_iterator(value, saved)}
            forget(inner, names.stored)
        self._report_lost(lost - self._kept)
        if is_restarted and not self._is_place_reported:
            self._is_place_reported = True
            say(
                "the script's own loop does not ask for job.step: after a resume it begins at its first pass, and makes"
                " steps again that were made; begin it at job.step, or use job.steps()"
            )

    def _is_blind(self, loops: Sequence[Loop], saved: SavedElsewhere) -> bool:
        """Return whether a loop of the script's own goes through no object with a position, and asks for no step."""
        if any(not self._kept.isdisjoint(names.read) for _, names in loops):
            return False
        return not has_position(loops[0][0], saved) and not any(asks_for_step(frame) for frame, _ in loops)


def enclosing_loops(innermost: FrameType | None) -> list[Loop]:
    """Return the script's running functions that are in a loop, the innermost first.

    Functions of libraries may be between them.
    """
    found = []
    frame = innermost
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            names = loop_names(frame.f_code, frame.f_lasti)
            if names.read or names.stored:
                found.append((frame, names))
        frame = frame.f_back
    return found
