"""One training in several lives in one process: snapshots at each boundary, a death, and a resume from memory."""

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
    """The death of a life."""


def as_library(function: Any) -> Any:
    """Return a copy of a function that counts as library code when the hooks look for frames of the script."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_filename=torch.__file__)
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__)


write_slot = as_library(snapshots.write_slot)


class Life:
    """One life of a training: what the training function gets in place of a job."""

    def __init__(self, directory: Path, before: Life | None = None, dies_at: int = STEPS + 1, **choices: Any) -> None:
        """Prepare a life.

        Args:
            directory: where the snapshot slot lies.
            before: the life from whose newest snapshot this one resumes.
            dies_at: the step at which this life dies.
            choices: `keep`, `ignore` and `frozen`, as attach() takes them.
        """
        self.directory = directory
        self.before = before
        self.dies_at = dies_at
        self.choices = Choices(
            frozen=choices.pop("frozen", ()),
            replicated=(),
            anew={},
            training="",
            **choices,
        )
        self.step = 0
        self.saved: MemoryReader | None = None
        self.state: RankState
        self.survey: Survey

    def attach(self, **objects: Any) -> None:
        """Register objects and restore the state of the life before, as ft.attach() does."""
        self.state = RankState(objects, self.choices.frozen, rank=0, world_size=1)
        if self.before is not None and self.before.saved is not None:
            self.state.restore(self.before.saved)
            self.step = self.before.saved.step
        self.survey = Survey(objects, self.choices, self.state)
        self.state.loop_variables = self.survey


def _steps(life: Any, total: int = STEPS) -> Any:
    """Yield the steps of a life up to `total`, and take a snapshot at each boundary."""
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
    """Count a step of a loop that the script has written itself, and take a snapshot."""
    life.step += 1
    life.survey.first_step_made(sys._getframe(1), cannot_put_back=True)
    life.directory.mkdir(exist_ok=True)
    write_slot(life.state, life.directory, life.step)
    life.saved = MemoryReader(life.directory, life.step, 1, {0: 0})
    if life.step == life.dies_at:
        raise DiedError


steps: Callable[..., Iterator[int]] = as_library(_steps)
step_done: Callable[[Life], None] = as_library(_step_done)


def seed() -> None:
    """Set all random generators to seed 0."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def live_twice(train: Callable[[Life], Any], directory: Path, dies_at: int = 5, **choices: Any) -> Any:
    """Train, die, and train on; return what the second life returns."""
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
    """Train in one undisturbed life; return what the life returns."""
    directory.mkdir(exist_ok=True)
    seed()
    return train(Life(directory / "calm", **choices))


class LoopSurveyor:
    """Surveys a loop whenever the loop calls `boundary`: first as at the loop's beginning, then as at a snapshot."""

    def __init__(self, objects: dict[str, Any], *, keep: bool = False, own: bool = False, **choices: Any) -> None:
        """Prepare the survey.

        Args:
            objects: as attach() takes them.
            keep: whether variables of the loop are saved.
            own: whether the script has written the loop itself.
            choices: further choices of attach().
        """
        decided = Choices(
            frozen=(),
            replicated=(),
            anew={},
            training="",
            keep=keep,
            **choices,
        )
        self.survey = Survey(objects, decided, RankState({}, (), rank=0, world_size=1))
        self.position = LoopPosition(objects, self.survey.kept_by_objects, self.survey.report_lost)
        self.own = own
        self.begun = False
        self.boundary: Callable[[], None] = functools.partial(survey, self)


def _survey(surveyor: LoopSurveyor) -> None:
    frame = sys._getframe(1)
    surveyor.position.check(frame, own=surveyor.own)
    if surveyor.begun:
        collector = Collector(0, one_node(1))
        collector.begin()
        surveyor.survey.collect(collector)
    elif surveyor.own:
        surveyor.survey.first_step_made(frame, cannot_put_back=True)
    else:
        surveyor.survey.begin(frame)
    surveyor.begun = True


survey = as_library(_survey)


for kind in (Life, LoopSurveyor):
    kind.__module__ = "ftlaunch_hooks.test_lives"  # the hooks skip objects of their own package
