"""An optimizer that trains what is attached, and is not attached itself, is told of once."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.snapshots import net, train

from ftlaunch_contract.pages.page import Page
from ftlaunch_hooks.observe.unsaved.unsaved_state import UnsavedState
from ftlaunch_hooks.state.state import Choices, RankState


@pytest.fixture
def watched(page: Page) -> Iterator[Any]:
    """Begins to look after objects; at the end torch has no hook of it left."""
    made = []

    def begin(**objects: Any) -> UnsavedState:
        made.append(UnsavedState(objects, page, 0, RankState({}, (), 0, 1), Choices((), (), {}, "", keep=False)))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def steps(page: Page, model: torch.nn.Module, make: Any) -> None:
    for step in range(3):
        page.beat(step, time.monotonic_ns())
        train(model, make(), steps=2)


def test_one_that_lives_for_several_steps_is_told_of_once(
    page: Page, watched: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """Tried: it fails where `_stepped` looks at no optimizer."""
    model = net()
    watched(model=model, optimizer=torch.optim.Adam(model.parameters()))
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    steps(page, model, lambda: other)
    said = capfd.readouterr().err
    assert said.count("that is not attached steps parameters of `model`") == said.count("ftlaunch:") == 1


def test_others_are_not(page: Page, watched: Any, capfd: pytest.CaptureFixture[str]) -> None:
    model, other = net(), net()
    mine = torch.optim.Adam(model.parameters())
    watched(model=model, optimizer=mine)
    wrapped = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped.state = mine.state  # it is saved as the state of the attached one
    elsewhere = torch.optim.SGD(other.parameters(), lr=0.1)
    for made in (lambda: mine, lambda: torch.optim.SGD(model.parameters(), lr=0.1), lambda: wrapped):
        steps(page, model, made)
    steps(page, other, lambda: elsewhere)
    assert capfd.readouterr().err == ""


def test_numbers_drawn_between_two_loops_are_told_of_once(
    page: Page, watched: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """Tried: it fails where `loop_left` notes nothing, where `loop_begins` compares nothing, and without the number
    that NumPy keeps of two that it draws at once: taking that moves no position.
    """
    np.random.randn()  # the second of the pair is kept
    state = RankState({}, (), 0, 1)
    draws: list[Any] = [lambda: None, lambda: torch.randn(1), random.random, np.random.randn, np.random.rand]
    told = []
    for draw in draws:
        watch = watched()
        watch.loop_left(state.random_numbers())
        draw()
        watch.loop_begins(0, state.random_numbers())
        told.append(capfd.readouterr().err.count("drawn between two loops of steps()"))
    assert told == [0, 1, 1, 1, 1]
    torch.randn(1)
    watch.loop_begins(0, state.random_numbers())
    assert capfd.readouterr().err == "", "no loop has made its steps before"
