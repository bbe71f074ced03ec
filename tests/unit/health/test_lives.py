"""Healthy jobs of awkward shapes, on a clock of their own: none is killed under `auto`.

Its floors are minutes, its ceiling is an hour: the real decisions are made about hours that nobody waits for. Each
shape is also followed by a hang, which must be seen: else its silence would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.lives import Life

pytestmark = pytest.mark.long

MINUTE, HOUR = 60.0, 3600.0


def trained(steps: int = 20, seconds: float = 2.0, ranks: int = 2, mode: str = "attached") -> Life:
    life = Life(ranks, mode)
    for rank in life.everybody:
        life.passes(rank, 30.0)
    life.attach()
    for _ in range(steps):
        life.step(seconds)
    return life


def compiles() -> Life:
    life = trained(0)
    for seconds in (50 * MINUTE, *[MINUTE] * 20):
        life.step(seconds)
    return life


def evaluates() -> Life:
    life = trained(20, 60.0)
    for _ in range(3):
        for rank in life.everybody:
            life.phase("eval", rank, 50 * MINUTE)
        life.step(60.0)
    return life


def rank_0_evaluates() -> Life:
    life = trained(20, 2.0)
    for _ in range(3):
        life.phase("eval", 0, 50 * MINUTE)
        life.step(2.0)
        life.step(2.0)
    return life


def rank_0_saves() -> Life:
    life = trained(20, 1.0, ranks=4)
    for seconds in (55 * MINUTE, 5.0, 30 * MINUTE):
        life.phase("checkpoint", 0, seconds)
        for _ in range(5):
            life.step(1.0)
    return life


def accumulates() -> Life:
    """64 micro-batches a step."""
    life = trained(0)
    for _ in range(10):
        life.step(64 * 30.0)
    return life


def epochs_without_a_step() -> Life:
    """An observed script that only evaluates for a while: busy, and no optimizer step."""
    life = trained(20, 1.0, mode="observed")
    for _ in range(3):
        life.step(45 * MINUTE, works=True)
        life.step(1.0)
    return life


def is_debugged() -> Life:
    """One rank is stopped for less than the limit, then goes on."""
    life = trained()
    life.step(2.0, 9 * MINUTE)
    life.step(2.0)
    return life


def waits_for_data() -> Life:
    """A worker of the data loader is busy, the ranks are not."""
    life = trained()
    life.step(50 * MINUTE, works=True)
    return life


def grows() -> Life:
    """Steps that get slower and slower, twenty times as slow in the end."""
    life = trained(0)
    for count in range(101):
        life.step(100.0 * 20 ** (count / 100))
    return life


def alternates() -> Life:
    life = trained(1)
    for _ in range(20):
        life.step(0.1)
        life.step(9 * MINUTE)
    return life


def imports_for_long() -> Life:
    life = Life()
    for rank in life.everybody:
        life.passes(rank, 29 * MINUTE)
        life.passes(rank, 2 * HOUR, works=True)
    life.attach()
    life.step(1.0)
    return life


def tears_down() -> Life:
    life = trained()
    for rank in life.everybody:
        life.end(rank, 55 * MINUTE)
    return life


def rank_0_ends_last() -> Life:
    """It writes the final model, the other has long ended."""
    life = trained()
    life.end(1, 1.0)
    life.end(0, 50 * MINUTE)
    return life


def trains_on_alone() -> Life:
    """Ranks with unequal shares of data."""
    life = trained()
    life.end(1, 1.0)
    for _ in range(200):
        life.now[1] = 0.0
        life.step(MINUTE)
        life.reports[1].pop(), life.times[1].pop()  # it makes no steps any more
    return life


def program_that_waits() -> Life:
    """A program without torch that does nothing for ten hours: it may serve."""
    life = Life(mode="mute")
    for rank in life.everybody:
        life.passes(rank, 10 * HOUR)
    return life


def one_of_them_had_nothing_to_do() -> Life:
    life = Life(mode="mute")
    life.end(1, 1.0)
    life.passes(0, 10 * HOUR, works=True)
    return life


def saves_between_slow_steps() -> Life:
    life = trained(5, 8 * MINUTE)
    for _ in range(4):
        life.step(8 * MINUTE)
        for rank in life.everybody:
            life.phase("checkpoint", rank, 20 * MINUTE)
    return life


def evaluates_longer_every_time() -> Life:
    life = trained()
    for minutes in (0.1, 50, 200, 900):
        for rank in life.everybody:
            life.phase("eval", rank, minutes * MINUTE)
        life.step(2.0)
    return life


def begins_with_an_evaluation() -> Life:
    life = trained(0)
    for rank in life.everybody:
        life.phase("eval", rank, 55 * MINUTE)
    life.step(5 * MINUTE)
    return life


LIVES = [
    compiles, evaluates, rank_0_evaluates, rank_0_saves, accumulates, epochs_without_a_step, is_debugged,
    waits_for_data, grows, alternates, imports_for_long, tears_down, rank_0_ends_last, trains_on_alone,
    program_that_waits, one_of_them_had_nothing_to_do, saves_between_slow_steps, evaluates_longer_every_time,
    begins_with_an_evaluation,
]  # fmt: skip
NEVER_JUDGED = (program_that_waits, one_of_them_had_nothing_to_do)
ENDED = (tears_down, rank_0_ends_last)


@pytest.mark.parametrize("make", LIVES, ids=lambda make: make.__name__)
def test_left_alone_under_auto(make: Callable[[], Life]) -> None:
    life, longest = make(), {}
    assert life.alarms(longest) == []
    assert life.alarms(longest) == [], "nor in a second run, with what the first has taught"
    if make not in ENDED + NEVER_JUDGED:
        assert life.alarms(longest, goes_on=200 * HOUR), "what hangs after all that is seen"
