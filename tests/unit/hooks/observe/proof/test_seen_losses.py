"""A loss is seen where the script goes back through it, and the gradients are as without it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ftlaunch_hooks.observe.proof import seen_losses


@pytest.fixture
def seen() -> Iterator[list[float]]:
    found: list[float] = []
    seen_losses.listen(found.append)
    yield found
    seen_losses.listen(None)


def test_the_value_of_a_loss_is_noted_before_its_gradients_are_made(seen: list[float]) -> None:
    weight = torch.tensor([2.0, 3.0], requires_grad=True)
    (weight * weight).sum().backward()
    assert seen == [13.0]
    assert weight.grad is not None
    assert weight.grad.tolist() == [4.0, 6.0]


def test_what_is_no_single_number_is_left_alone(seen: list[float]) -> None:
    weight = torch.ones(3, requires_grad=True)
    (weight * 2).backward(torch.ones(3))
    assert not seen
    assert weight.grad is not None


def test_nothing_is_noted_once_nobody_listens(seen: list[float]) -> None:
    seen_losses.listen(None)
    torch.ones(1, requires_grad=True).sum().backward()
    assert not seen
