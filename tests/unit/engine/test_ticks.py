"""How often the pages of ranks are looked at: what it takes stays small, however many ranks there are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fakes.clock import Clock

from ftlaunch.engine.watch import Watch, tick_seconds
from ftlaunch.policy.states import JobState
from ftlaunch.spec.resolve import resolve


@pytest.mark.parametrize(
    ("cost_seconds", "tick"),
    [(0.0, 0.1), (0.0005, 0.1), (0.004, 0.5), (0.01, 1.0), (0.015, 1.0), (0.06, 4.0), (1.0, 15.0)],
)
def test_a_costly_look_is_taken_seldom(cost_seconds: float, tick: float) -> None:
    assert tick_seconds(cost_seconds, is_fast=False) == pytest.approx(tick)


@pytest.mark.parametrize(("cost_seconds", "tick"), [(0.0, 0.01), (0.02, 0.1), (1.0, 1.0)])
def test_what_is_about_to_happen_is_looked_for_once_a_second_at_least(cost_seconds: float, tick: float) -> None:
    assert tick_seconds(cost_seconds, is_fast=True) == pytest.approx(tick)


class SlowGroup:
    """Ranks of which none resumes, and of whom it takes six milliseconds of a processor to see that."""

    refilling = False

    def __init__(self, used: Iterator[float]) -> None:
        self.looks, self._used = 0, used

    @property
    def resuming(self) -> bool:
        """No."""
        self.looks += 1
        for _ in range(6):
            next(self._used)
        return False


def test_the_first_rank_that_resumes_is_not_looked_for_in_every_turn(tmp_path: Path) -> None:
    """The loop turns for each message of each node, and each look is at all ranks: that was quadratic."""
    (tmp_path / "train.py").touch()
    clock, used = Clock(), (number / 1000 for number in count())
    spec = resolve(str(tmp_path / "train.py"), (), {"run_dir": str(tmp_path)}, {})
    unused: Any = None
    context: Any = SimpleNamespace(clock=clock, spec=spec)
    watch = Watch(context, unused, unused, unused, unused, lambda: next(used))
    group = SlowGroup(used)
    attempt: Any = SimpleNamespace(number=0, group=group, progress=SimpleNamespace(resume_awaited=True))
    for _ in range(1000):
        clock.now += 0.001
        watch.next_poll_at(JobState.RUNNING, attempt)
    assert 2 <= group.looks <= 5, "a second of turns"
    attempt.number = 1
    watch.next_poll_at(JobState.RUNNING, attempt)
    assert group.looks <= 6, "another attempt is looked at at once"
