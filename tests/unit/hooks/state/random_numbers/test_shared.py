"""States of random number generators, read and put back."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy
import pytest
import torch

from ftlaunch_hooks.state.random_numbers import shared


def drawn(own: torch.Generator) -> list[float]:
    numbers = [random.random(), random.gauss(0, 1), numpy.random.rand(), numpy.random.randn()]
    return [*numbers, torch.rand(()).item(), torch.rand((), generator=own).item()]


def test_what_was_read_is_put_back() -> None:
    own = torch.Generator()
    drawn(own)  # a second number of a pair waits in Python's and NumPy's generators
    state = shared.read([own])
    numbers = drawn(own)
    assert drawn(own) != numbers
    shared.put_back(state, [own])
    assert drawn(own) == numbers


def test_a_raw_state_is_not_changed_by_what_is_drawn_later() -> None:
    own = torch.Generator()
    raw = shared.read_raw()
    numbers = drawn(own)[:-1]
    shared.put_back(shared.to_save(raw))
    assert drawn(own)[:-1] == numbers


@pytest.mark.parametrize(
    "draw",
    [
        random.random,
        lambda: random.gauss(0, 1),
        numpy.random.rand,
        numpy.random.randn,
        lambda: torch.rand(()).item(),
    ],
)
def test_every_draw_is_seen_and_taken_back(draw: Callable[[], float]) -> None:
    """Also the second of two normal numbers that were drawn at once."""
    for _ in range(3):
        before = shared.read_raw()
        assert shared.are_alike(before, shared.read_raw())
        number = draw()
        assert not shared.are_alike(before, shared.read_raw())
        shared.put_back_raw(before)
        assert draw() == number
        shared.put_back(shared.to_save(before))
        assert draw() == number


def test_another_kind_of_numpys_generator_is_saved(capfd: pytest.CaptureFixture[str]) -> None:
    before = numpy.random.get_bit_generator()
    try:
        numpy.random.set_bit_generator(numpy.random.PCG64(3))
        state = shared.to_save(shared.read_raw())
        number = numpy.random.rand()
        shared.put_back(state)
        assert numpy.random.rand() == number
    finally:
        numpy.random.set_bit_generator(before)
    shared.put_back(state)
    assert "NumPy's global generator is a MT19937, and was a PCG64" in capfd.readouterr().err
