"""Steps a second, from looks."""

from __future__ import annotations

from ftlaunch.views.top.pace import Pace


def looked(*points: tuple[float, int]) -> float | None:
    pace, found = Pace(), None
    for now, step in points:
        found = pace.update(now, step)
    return found


def test_it_is_counted_from_the_first_step_that_a_look_has_seen_come() -> None:
    assert looked((0.0, 5), (1.0, 6)) is None  # when step 5 came nobody knows
    assert looked((0.0, 5), (1.0, 6), (2.0, 8), (3.0, 10)) == 2.0


def test_between_slow_steps_it_stays_and_in_a_standstill_it_falls() -> None:
    steps = ((0.0, 0), (10.0, 1), (20.0, 2), (30.0, 3))
    assert looked(*steps, (39.0, 3)) == 0.1
    assert looked(*steps, (110.0, 3)) == 0.02


def test_only_the_last_half_minute_counts() -> None:
    fast = [(float(n), 10 * n) for n in range(60)]
    slow = [(59.0 + n, 590 + n) for n in range(1, 60)]
    found = looked(*fast, *slow)
    assert found is not None
    assert round(found, 1) == 1.0


def test_another_attempt_begins_anew() -> None:
    assert looked((0.0, 5), (1.0, 6), (2.0, 8), (3.0, 4)) is None
    assert looked((0.0, 5), (1.0, 6), (2.0, 8), (3.0, 4), (4.0, 5), (5.0, 7)) == 2.0
