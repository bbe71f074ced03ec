"""The interval that is fitted to what snapshots cost."""

from __future__ import annotations

import pytest

from ftlaunch_hooks.snapshots.interval import MOST, AdaptiveInterval, wanted


def run(pace: AdaptiveInterval, steps: int, step: float, stall: float) -> None:
    """Steps of `step` seconds, snapshots of `stall` seconds, half of it waited for in the step that follows."""
    due = 0
    owed = 0.0
    for number in range(steps):
        taken = number >= due
        stalled = owed + (stall / 2 if taken else 0.0)
        owed = stall / 2 if taken else 0.0
        pace.note(step + stalled, stalled, taken)
        if taken:
            due = number + pace.interval


@pytest.mark.parametrize(
    ("stall", "step", "interval"),
    [(0.0, 0.1, 1), (0.001, 0.1, 1), (0.0011, 0.1, 2), (0.05, 0.1, 50), (9.0, 0.1, MOST), (0.1, 0.0, MOST)],
)
def test_the_least_that_costs_one_percent(stall: float, step: float, interval: int) -> None:
    assert wanted(stall, step) == interval


def test_it_grows_to_what_is_cheap_and_shrinks_again() -> None:
    pace = AdaptiveInterval(1, auto=True)
    run(pace, 30, step=0.1, stall=0.02)
    assert pace.interval == 20
    run(pace, 400, step=0.1, stall=0.02)
    assert pace.interval == 20
    run(pace, 1000, step=0.1, stall=0.0005)
    assert pace.interval == 1


def test_small_changes_do_not_move_it() -> None:
    pace = AdaptiveInterval(1, auto=True)
    run(pace, 30, step=0.1, stall=0.02)
    run(pace, 1000, step=0.1, stall=0.017)
    assert pace.interval == 20


def test_the_first_snapshots_do_not_count() -> None:
    """They find their memory, which takes far longer."""
    pace = AdaptiveInterval(1, auto=True)
    run(pace, 3, step=0.1, stall=5.0)
    run(pace, 30, step=0.1, stall=0.0005)
    assert pace.interval == 1


def test_a_number_stays_what_it_is() -> None:
    for interval in (0, 1, 7):
        pace = AdaptiveInterval(interval, auto=False)
        run(pace, 50, step=0.001, stall=1.0)
        assert pace.interval == interval
