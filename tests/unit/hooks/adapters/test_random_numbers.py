"""States of random number generators, read and put back."""

from __future__ import annotations

import random

import numpy
import torch

from ftlaunch_hooks.adapters import random_numbers


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
    random_numbers.put_back(random_numbers.cooked(raw))
    assert drawn(own)[:-1] == numbers
