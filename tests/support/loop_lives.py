"""One training in several lives, in one process: a snapshot at each boundary, a death, and what goes on from there."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import torch

from ftlaunch_contract.node_ranks import one_node
from ftlaunch_hooks.observe.unsaved.loop_position import LoopPosition
from ftlaunch_hooks.observe.unsaved.survey import Survey
from ftlaunch_hooks.state.collector import Collector
from ftlaunch_hooks.state.state import Choices, RankState
from ftlaunch_hooks.storage.saved_tensors import MemoryReader
from tests.support import snapshots

STEPS = 9


class DiedError(Exception):
    """The end of a life."""


def as_library(function: Any) -> Any:
    """A function like that one, which counts as a library's where the script's frames are looked for."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_filename=torch.__file__)
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__)


write_slot = as_library(snapshots.write_slot)


class Life:
    """What a training function gets: attach(), steps(), and a death."""

    def __init__(self, directory: Path, before: Life | None = None, dies_at: int = STEPS + 1, **choices: Any) -> None:
        """before: the life whose newest snapshot this one goes on from. choices: keep, ignore, frozen."""
        self.directory, self.before, self.dies_at = directory, before, dies_at
        self.choices = Choices(choices.pop("frozen", ()), (), {}, "", **choices)
        self.step = 0
        self.saved: MemoryReader | None = None
        self.state: RankState
        self.survey: Survey

    def attach(self, **objects: Any) -> None:
        """As ft.attach() does."""
        self.state = RankState(objects, self.choices.frozen, 0, 1)
        if self.before is not None and self.before.saved is not None:
            self.state.restore(self.before.saved)
            self.step = self.before.saved.step
        self.survey = Survey(objects, self.choices, self.state)
        self.state.loop_variables = self.survey


def _steps(life: Any, total: int = STEPS) -> Any:
    """Of a life, up to `total`; a snapshot at each boundary."""
    if total < life.step:
        life.survey.pass_loop(sys._getframe(1))
    else:
        life.survey.begin(sys._getframe(1))
        life.state.restore_rng()
    while life.step < total:
        if life.step == life.dies_at:
            raise DiedError
        yield life.step
        life.step += 1
        life.directory.mkdir(exist_ok=True)
        write_slot(life.state, life.directory, life.step)
        life.saved = MemoryReader(life.directory, life.step, 1, {0: 0})


def _step_done(life: Any) -> None:
    """In a loop of the script's own."""
    life.step += 1
    life.survey.first_step_made(sys._getframe(1), own=True)
    life.directory.mkdir(exist_ok=True)
    write_slot(life.state, life.directory, life.step)
    life.saved = MemoryReader(life.directory, life.step, 1, {0: 0})
    if life.step == life.dies_at:
        raise DiedError


steps: Callable[..., Iterator[int]] = as_library(_steps)
step_done: Callable[[Life], None] = as_library(_step_done)


def seed() -> None:
    """All random numbers from the beginning."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def live_twice(train: Callable[[Life], Any], directory: Path, dies_at: int = 5, **choices: Any) -> Any:
    """Train, die, and train on; returns what the second life returns."""
    directory.mkdir(exist_ok=True)
    seed()
    first = Life(directory / f"first_{dies_at}", None, dies_at, **choices)
    try:
        train(first)
    except DiedError:
        pass
    else:
        raise AssertionError("it did not die")
    seed()
    return train(Life(directory / f"second_{dies_at}", first, **choices))


def undisturbed(train: Callable[[Life], Any], directory: Path, **choices: Any) -> Any:
    """Train in one life; returns what it returns."""
    directory.mkdir(exist_ok=True)
    seed()
    return train(Life(directory / "calm", **choices))


class Looker:
    """Looks at a loop whenever the loop calls `boundary`: at first as the loop begins, then as at a snapshot."""

    def __init__(self, objects: dict[str, Any], *, keep: bool = False, own: bool = False, **choices: Any) -> None:
        """objects: as attach() takes them. own: the loop is the script's own."""
        self.survey = Survey(objects, Choices((), (), {}, "", keep=keep, **choices), RankState({}, (), 0, 1))
        self.position = LoopPosition(objects, self.survey.kept_by_objects, self.survey.tell_lost)
        self.own, self.begun = own, False
        self.boundary: Callable[[], None] = functools.partial(look, self)


def _look(looker: Looker) -> None:
    frame = sys._getframe(1)
    looker.position.look(frame, own=looker.own)
    if looker.begun:
        collector = Collector(0, one_node(1))
        collector.begin()
        looker.survey.collect(collector)
    elif looker.own:
        looker.survey.first_step_made(frame, own=True)
    else:
        looker.survey.begin(frame)
    looker.begun = True


look = as_library(_look)


for kind in (Life, Looker):
    kind.__module__ = "ftlaunch_hooks.test_lives"  # as a Job: no object of the script's
