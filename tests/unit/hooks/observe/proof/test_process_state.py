"""Fingerprints of random numbers and learning rates follow every change, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from ftlaunch_hooks.observe.proof.process_state import (
    fingerprint_batch,
    fingerprint_learning_rates,
    fingerprint_random_numbers,
)


@pytest.mark.parametrize(
    "draw",
    [lambda: torch.rand(1), random.random, np.random.rand, lambda: random.gauss(0, 1), np.random.randn],
    ids=["torch", "python", "numpy", "python's second normal number", "numpy's second normal number"],
)
def test_a_number_that_is_drawn_changes_the_fingerprint(draw: Callable[[], object]) -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    seen = {fingerprint_random_numbers(has_all_generators=True)}
    for _ in range(2):
        draw()
        seen.add(fingerprint_random_numbers(has_all_generators=True))
    assert len(seen) == 3
    assert fingerprint_random_numbers(has_all_generators=True) == fingerprint_random_numbers(has_all_generators=True)


def test_learning_rates_of_all_groups_count() -> None:
    parameters = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [one]} for one in parameters], lr=0.1)
    before = fingerprint_learning_rates([optimizer])
    assert fingerprint_learning_rates([optimizer]) == before
    optimizer.param_groups[1]["lr"] = torch.tensor(0.2)
    assert fingerprint_learning_rates([optimizer]) != before


def test_batches_of_one_step_are_counted_in_their_order() -> None:
    one = torch.arange(4.0)
    other = torch.ones(4)
    first = fingerprint_batch(one, 0)
    second = fingerprint_batch(other, 0)
    assert first is not None
    assert second is not None
    assert fingerprint_batch(other, first) != fingerprint_batch(one, second)
    assert fingerprint_batch(one.clone(), 0) == first
