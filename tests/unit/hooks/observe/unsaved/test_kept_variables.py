"""An attached object that brings variables of the loop back names them, and nothing tells of them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.loop_lives import LoopSurveyor
from tests.support.loops import Holder
from torch import nn


def keeper(*names: str) -> Holder:
    """An object to attach that brings these variables back."""
    return Holder(keeps_variables=names)


def loop(boundary: Callable[[], None]) -> None:
    args, iteration, other = SimpleNamespace(seen=0, lost=0), 0, 0
    while iteration < 3:
        boundary()
        iteration += 1
        other += 1
        args.seen += 1
        args.lost += 1


def test_what_is_named_is_not_told(told: Any) -> None:
    assert told(loop, {}) == ["args.lost", "args.seen", "iteration", "other"]
    assert told(loop, {"keeper": keeper("iteration", "args.seen")}) == ["args.lost", "other"]


@pytest.mark.parametrize(("names", "count"), [((), 1), (("elsewhere",), 1), (("iteration",), 0)])
def test_a_loop_over_a_variable_that_is_brought_back_has_its_place(
    names: tuple[str, ...], count: int, capfd: pytest.CaptureFixture[str]
) -> None:
    loop(LoopSurveyor({"keeper": keeper(*names)}, own=True).boundary)
    assert capfd.readouterr().err.count("the script's own loop does not ask for job.step") == count


def test_a_module_may_call_something_else_its_buffers(told: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Megatron's DistributedDataParallel has a list of that name."""
    module: Any = nn.Linear(2, 2)
    module.buffers = [1]

    def uses(boundary: Callable[[], None]) -> None:
        mine = module
        for _ in range(3):
            boundary()
            str(mine)

    assert told(uses, {"model": module}) == []
    uses(LoopSurveyor({"model": module}).boundary)
    assert "cannot look" not in capfd.readouterr().err
