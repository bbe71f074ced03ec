"""States of random number generators, read and put back."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from ftlaunch_hooks.job.restore import AttachError
from ftlaunch_hooks.state.random_numbers import shared as random_numbers


def drawn(own: torch.Generator) -> list[float]:
    numbers = [random.random(), random.gauss(0, 1), numpy.random.rand(), numpy.random.randn()]
    return [*numbers, torch.rand(()).item(), torch.rand((), generator=own).item()]


def test_what_was_read_is_put_back() -> None:
    own = torch.Generator()
    drawn(own)  # a second number of a pair waits in Python's and NumPy's generators
    state = random_numbers.read([own])
    numbers = drawn(own)
    assert drawn(own) != numbers
    random_numbers.put_back(state, [own])
    assert drawn(own) == numbers


def test_a_raw_state_is_not_changed_by_what_is_drawn_later() -> None:
    own = torch.Generator()
    raw = random_numbers.read_raw()
    numbers = drawn(own)[:-1]
    random_numbers.put_back(random_numbers.to_save(raw))
    assert drawn(own)[:-1] == numbers


def test_every_draw_of_numpys_is_seen_at_a_glance() -> None:
    """A glance gives a state again where nothing was drawn. Taken out: the second of two normal numbers is missed."""
    numpy.random.set_state(("MT19937", numpy.arange(624, dtype="uint32"), 5, 0, 0.0))
    first = random_numbers.read_raw()
    assert random_numbers.read_raw()[2] is first[2]
    for draw in (numpy.random.rand, numpy.random.randn, numpy.random.randn, numpy.random.rand):
        before = random_numbers.read_raw()
        number = draw()
        assert not random_numbers.are_alike(before, random_numbers.read_raw())
        random_numbers.put_back(random_numbers.to_save(before))
        assert draw() == number


def test_every_draw_of_pythons_is_seen_at_a_glance() -> None:
    """Taken out: without `gauss_next` the second of two normal numbers is missed."""
    random.seed(4)
    first = random_numbers.read_raw()
    assert random_numbers.read_raw()[0] is first[0]
    for draw in (random.random, lambda: random.gauss(0, 1), lambda: random.gauss(0, 1), lambda: random.getrandbits(7)):
        before = random_numbers.read_raw()
        assert before[0] == random.getstate()
        number = draw()
        assert not random_numbers.are_alike(before, random_numbers.read_raw())
        random_numbers.put_back(random_numbers.to_save(before))
        assert draw() == number
    waiting = random.getstate()
    random.seed(4)
    assert random_numbers.read_raw()[0] == first[0]
    random.setstate(waiting)
    assert random_numbers.read_raw()[0] == waiting


def test_what_is_saved_has_the_second_normal_number() -> None:
    """Taken out: what is read at a glance is saved, and the number that set_state() has brought back is lost."""
    numpy.random.seed(3)
    numpy.random.randn()
    waiting = numpy.random.get_state()
    number = numpy.random.randn()
    random_numbers.read_raw()
    numpy.random.set_state(waiting)
    saved = random_numbers.to_save(random_numbers.read_raw())
    numpy.random.randn()
    random_numbers.put_back(saved)
    assert numpy.random.randn() == number


def test_another_kind_of_numpys_generator_is_refused() -> None:
    before = numpy.random.get_bit_generator()
    try:
        numpy.random.set_bit_generator(numpy.random.PCG64(3))
        with pytest.raises(AttachError, match="has put a PCG64 there"):
            random_numbers.read_raw()
    finally:
        numpy.random.set_bit_generator(before)
