"""Tells the user where the script's loop over epochs does not find its place after a resume.

This concerns loops around passes that are brought back to a batch. The loaders and adapters call an EpochLoops in the
thread that trains.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType

from ftlaunch_hooks.observe.reachable.kinds import is_library
from ftlaunch_hooks.observe.unsaved.loop_places import asks_before_loops, asks_for_step
from ftlaunch_hooks.observe.unsaved.loop_source import source_of
from ftlaunch_hooks.process.say import say

_BLIND = (
    "the script's loop over epochs asks neither for the loader's `iteration` nor for job.step: after a resume it begins"
    " at its first epoch, and makes more epochs than an undisturbed run; begin it at `loader.iteration`"
)
_EMPTY = (
    "the pass over the loader was complete at step {step}: it is gone through again without a batch, so that what"
    " follows it in the script runs; a loop over epochs that begins at a number made of job.step, and not at"
    " `loader.iteration`, ends an epoch too early: then the run is not exact"
)
_COUNTED = (
    "the script counts the batches of a pass with enumerate(), which begins at 0 where a pass goes on behind {had}"
    " batches: the run is not exact where training uses that count; use job.step, or a count in an attached object"
)
_WILL_COUNT = (
    "the script counts the batches of a pass with enumerate(), which this Python cannot give another number: after a"
    " resume it begins at 0, and the run is not exact where training uses that count; use job.step, or a count in an"
    " attached object"
)


class EpochLoops:
    """Checks the running loops over epochs at each pass, and writes each sentence once, on one rank."""

    def __init__(self, *, speaks: bool) -> None:
        """Begin with nothing written. speaks: whether this rank writes sentences to its log."""
        self._speaks = speaks
        self._written: set[str] = set()

    def begins(self, iteration: int) -> None:
        """Check the loops as a pass begins: after a resume they must not begin at their first epoch.

        Args:
            iteration: number of the pass. The first pass is not checked.
        """
        if iteration > 0 and _BLIND not in self._written and not any(_asks(frame) for frame in _frames()):
            self.say_once(_BLIND)

    def goes_on(self, had: int) -> None:
        """Check for an enumerate() that begins at 0 as a resumed pass hands out its first batch.

        Args:
            had: number of batches of the pass that were handed out before the resume.
        """
        for frame in islice(_frames(), 1):
            names = source_of(frame.f_code, frame.f_lasti)
            if had and "enumerate" in names and len(names) == 2:  # the two names tell enumerate() no beginning
                self.say_once(_COUNTED.format(had=had))

    def is_empty(self, step: int) -> None:
        """Check the loops as a pass that is resumed at `step` has no batch left."""
        if not any(_asks_loader(frame) for frame in _frames()):
            self.say_once(_EMPTY.format(step=step))

    def asks_for_place(self) -> bool:
        """Return whether a running function of the script has asked for the step of the job before its loops."""
        return any(asks_before_loops(frame) for frame in _frames())

    def counts_batches(self) -> bool:
        """Return whether the script's innermost loop goes through an enumerate()."""
        return any("enumerate" in source_of(frame.f_code, frame.f_lasti) for frame in islice(_frames(), 1))

    def say_of_count(self, had: int) -> None:
        """Write that an enumerate() does not continue at its number. had: batches of the pass before the resume."""
        self.say_once(_COUNTED.format(had=had) if had else _WILL_COUNT)

    def say_once(self, sentence: str) -> None:
        """Write a sentence unless it was written before. Adapters also write sentences of their own with this."""
        if self._speaks and sentence not in self._written:
            say(sentence)
        self._written.add(sentence)


def _frames() -> Iterator[FrameType]:
    """Yield the frames of the script's functions that run now, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _asks_loader(frame: FrameType) -> bool:
    """Return whether a function asks for the number of the pass, or takes its steps from steps()."""
    return not {"iteration", "steps"}.isdisjoint(frame.f_code.co_names)


def _asks(frame: FrameType) -> bool:
    """Return whether a function can continue where the job is."""
    return _asks_loader(frame) or asks_for_step(frame)
