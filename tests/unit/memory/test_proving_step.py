"""At which step a resume proves itself, and when that is not worth its cost."""

from __future__ import annotations

import pytest

from ftlaunch.memory.proving_step import choose_proving_step
from ftlaunch.memory.recovery_plan import NONE

SLOTS = {0: (7, 6, NONE), 1: (6, 7, NONE)}
NOTHING_BEHIND = {0: 7, 1: 7}


def chosen(**changes: object) -> int:
    asked: dict[str, object] = {"slots": SLOTS, "evidence": NOTHING_BEHIND, "mode": "on", "step_seconds": 0.01}
    asked |= changes
    return choose_proving_step(7, asked.pop("slots"), asked.pop("evidence"), **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_one_snapshot_further_back_where_nothing_is_made_again(mode: str) -> None:
    assert chosen(mode=mode) == 6
    assert chosen(mode=mode, evidence={0: 8, 1: 7}) == 6, "rank 1 would prove nothing"


def test_never_where_it_is_off() -> None:
    assert chosen(mode="off") == 7


def test_not_where_a_step_under_way_proves_it() -> None:
    assert chosen(evidence={0: 8, 1: 8}) == 7


def test_not_where_nothing_is_known_of_the_steps_between() -> None:
    """A rank whose library notes no fingerprints, and one that has lost them, would make steps again for nothing."""
    assert chosen(evidence={0: NONE, 1: NONE}) == 7
    assert chosen(evidence={0: 7, 1: NONE}) == 7
    assert chosen(evidence={0: 7}) == 7
    assert chosen(evidence={0: 7, 1: 6}) == 7


def test_only_a_step_that_all_ranks_have() -> None:
    assert chosen(slots={0: (7, 6, 5), 1: (7, 5, NONE)}) == 5
    assert chosen(slots={0: (7, 6, NONE), 1: (7, NONE, NONE)}) == 7


def test_auto_goes_by_what_the_steps_cost() -> None:
    assert chosen(mode="auto", step_seconds=0.1) == 6
    assert chosen(mode="auto", step_seconds=0.11) == 7
    assert chosen(mode="on", step_seconds=60.0) == 6
    assert chosen(mode="auto", step_seconds=0.0) == 7, "not known"
    far = {0: (7, 2, NONE), 1: (7, 2, NONE)}
    assert chosen(mode="auto", slots=far, step_seconds=0.02) == 2
    assert chosen(mode="auto", slots=far, step_seconds=0.03) == 7


def test_never_behind_what_storage_has() -> None:
    assert chosen(oldest=7) == 7
    assert chosen(oldest=6) == 6
