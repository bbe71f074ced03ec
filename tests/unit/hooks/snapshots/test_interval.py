"""The interval that is fitted to what snapshots cost."""

from __future__ import annotations

import pytest

from ftlaunch_hooks.snapshots.interval import MOST, AdaptiveInterval, wanted


def run(pace: AdaptiveInterval, steps: int, step: float, stall: float) -> None:
    """Steps of `step` seconds, snapshots of `stall` seconds."""
    due = 0
    for number in range(steps):
        taken = number >= due
        stalled = stall if taken else 0.0
        pace.note(step + stalled, stalled, 0.0, taken)
        if taken:
            due = number + pace.interval


@pytest.mark.parametrize(
    ("stall", "step", "interval"),
    [
        (0.0, 0.1, 1),
        (0.0005, 0.1, 1),
        (0.0006, 0.1, 2),
        (0.05, 0.1, 100),
        (9.0, 0.1, 18_000),
        (1e6, 0.1, MOST),
        (0.1, 0.0, MOST),
    ],
)
def test_the_least_that_costs_half_a_percent(stall: float, step: float, interval: int) -> None:
    assert wanted(stall, step) == pytest.approx(interval, abs=1)


def test_it_grows_to_what_is_cheap_and_shrinks_again() -> None:
    pace = AdaptiveInterval(1, auto=True)
    run(pace, 30, step=0.1, stall=0.01)
    assert pace.interval == pytest.approx(20, abs=1)
    run(pace, 400, step=0.1, stall=0.01)
    assert pace.interval == pytest.approx(20, abs=1)
    run(pace, 1000, step=0.1, stall=0.00025)
    assert pace.interval == 1


def test_small_changes_do_not_move_it() -> None:
    pace = AdaptiveInterval(1, auto=True)
    run(pace, 30, step=0.1, stall=0.01)
    run(pace, 1000, step=0.1, stall=0.0085)
    assert pace.interval == pytest.approx(20, abs=1)


def test_a_few_snapshots_tell_enough_to_begin_with() -> None:
    """A run of ten minutes is not slowed down while it is found out what a snapshot costs."""
    pace = AdaptiveInterval(1, auto=True)
    intervals = []
    for _ in range(6):
        pace.note(0.1 + 2.5, 2.5, 0.0, True)
        intervals.append(pace.interval)
    assert intervals == [8, 64, 512, 4096, pytest.approx(5000, rel=0.01), pytest.approx(5000, rel=0.01)]


def test_one_that_is_wrong_by_far_does_not_end_the_snapshots() -> None:
    """A step that seems to take no time at all, say."""
    pace = AdaptiveInterval(1, auto=True)
    pace.note(1.0, 1.0, 0.0, True)
    assert pace.interval == 8
    run(pace, 20, step=0.1, stall=0.0005)
    assert pace.interval == 1


def test_what_is_done_once_does_not_count() -> None:
    """The slots get their files, which takes far longer than a copy."""
    pace = AdaptiveInterval(1, auto=True)
    pace.note(0.1 + 5.0, 5.0, 4.9975, True)
    assert pace.interval == pytest.approx(5, abs=1)


def test_a_first_snapshot_that_is_slow_is_outweighed_by_the_next() -> None:
    pace = AdaptiveInterval(1, auto=True)
    pace.note(0.1 + 1.0, 1.0, 0.0, True)
    assert pace.interval == 8
    pace.note(0.1 + 0.001, 0.001, 0.0, True)
    assert pace.interval == 2


def test_a_first_step_that_is_slow_is_outweighed_by_the_next() -> None:
    """It compiles."""
    pace = AdaptiveInterval(1, auto=True)
    pace.note(60.0, 0.1, 0.0, True)
    assert pace.interval == 1
    run(pace, 400, step=0.1, stall=0.05)
    assert pace.interval == pytest.approx(100, rel=0.02)


def test_a_number_stays_what_it_is() -> None:
    for interval in (0, 1, 7):
        pace = AdaptiveInterval(interval, auto=False)
        run(pace, 50, step=0.001, stall=1.0)
        assert pace.interval == interval
