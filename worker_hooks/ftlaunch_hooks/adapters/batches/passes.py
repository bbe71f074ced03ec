"""Passes over loaders of data, for adapters that bring a loader back into the middle of one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any

import torch

from ftlaunch_hooks.adapters import random_numbers
from ftlaunch_hooks.adapters.batches.held_generators import HeldGenerators
from ftlaunch_hooks.observe.reachable.kinds import is_library
from ftlaunch_hooks.observe.unsaved.loop_places import asks_for_step
from ftlaunch_hooks.observe.unsaved.loop_source import source_of
from ftlaunch_hooks.process.say import say

PERSISTENT = (
    "workers of a DataLoader with persistent_workers=True keep random numbers from epoch to epoch, which are not saved:"
    " where they draw any, a run that has resumed after its first epoch is not exact"
)
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


class Draws:
    """What one loader draws from, besides the global generators: generators of its own, seeds of its samplers, and
    generators that its data set or its collator holds.
    """

    def __init__(self, loader: Any) -> None:
        self._loader, self._held = loader, HeldGenerators(loader)

    def read(self) -> random_numbers.State:
        """The global generators, the loader's own, and those that are held."""
        return {**random_numbers.read(self.generators()), "held": self._held.states()}

    def put_back(self, state: random_numbers.State) -> None:
        """The reverse of `read`."""
        random_numbers.put_back(state, self.generators())
        self._held.put_back(state["held"])

    def own(self) -> dict[str, Any]:
        """Without the global ones."""
        seeds = [one.initial_seed for one in self._samplers() if hasattr(one, "initial_seed")]
        own = [generator.get_state() for generator in self.generators()]
        return {"own": own, "seeds": seeds, "held": self._held.states()}

    def put_back_seeds(self, saved: dict[str, Any]) -> None:
        """Before the pass begins, of what `own` has given."""
        seeded = [one for one in self._samplers() if hasattr(one, "initial_seed")]
        for sampler, seed in zip(seeded, saved["seeds"], strict=False):
            sampler.initial_seed = seed

    def put_back_own(self, saved: dict[str, Any]) -> None:
        """The generators of what `own` has given."""
        for generator, state in zip(self.generators(), saved["own"], strict=False):
            generator.set_state(state)
        self._held.put_back(saved["held"])

    def generators(self) -> list[torch.Generator]:
        """Generators that were given to the loader and its samplers, each once."""
        holders = [self._loader, *self._samplers()]
        held = [getattr(one, name, None) for one in holders for name in ("generator", "synchronized_generator")]
        return list({id(one): one for one in held if isinstance(one, torch.Generator)}.values())

    def _samplers(self) -> list[Any]:
        """The samplers within each other, as frameworks wrap them; Lightning hides one in a data set."""
        found, holder = [], self._loader
        for name in ("batch_sampler", "batch_sampler", "sampler", "sampler"):
            inner = getattr(holder, name, None)
            holder = holder if inner is None else inner
            found.append(holder)
        hidden = getattr(getattr(holder, "dataset", None), "_sampler", None)
        return found if hidden is None else [*found, hidden]


class EpochLoops:
    """The script's loops over epochs: says once, on one rank, where one is not as a resume needs it."""

    def __init__(self, *, speaks: bool) -> None:
        self._speaks = speaks
        self._told: set[str] = set()

    def begins(self, iteration: int) -> None:
        """A pass begins. A later one in a loop that would begin at its first one after a resume is told of."""
        if iteration > 0 and _BLIND not in self._told and not any(_asks(frame) for frame in _frames()):
            self.say_once(_BLIND)

    def goes_on(self, had: int) -> None:
        """A pass that is resumed hands out its first batch, behind `had` others."""
        for frame in islice(_frames(), 1):
            names = source_of(frame.f_code, frame.f_lasti)
            if had and "enumerate" in names and len(names) == 2:  # nothing tells it where to begin
                self.say_once(_COUNTED.format(had=had))

    def is_empty(self, step: int) -> None:
        """A pass that is resumed at `step` has no batch left."""
        if not any(_asks_loader(frame) for frame in _frames()):
            self.say_once(_EMPTY.format(step=step))

    def say_once(self, sentence: str) -> None:
        """For the adapters' own sentences."""
        if self._speaks and sentence not in self._told:
            say(sentence)
        self._told.add(sentence)


def _frames() -> Iterator[FrameType]:
    """Of the script's functions that run now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _asks_loader(frame: FrameType) -> bool:
    """Whether a function asks for the number of the pass, or takes its steps from steps()."""
    return not {"iteration", "steps"}.isdisjoint(frame.f_code.co_names)


def _asks(frame: FrameType) -> bool:
    """Whether a function can go on where the job is."""
    return _asks_loader(frame) or asks_for_step(frame)
