"""Which rank the others wait for: out of what pages say, on a clock of its own."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from ftlaunch.health.stragglers import WINDOW_STEPS, WINDOWS, WINDOWS_WELL, Own, StragglerNews, Stragglers
from ftlaunch.history.status_view import status_lines


class Ranks:
    """Makes steps in windows: each rank's own part of a step is given."""

    def __init__(self, number: int) -> None:
        self.slow, self.now = Stragglers(), 100.0
        self.own: dict[int, Own] = dict.fromkeys(range(number), (0, 0.0))
        self.slow.observe(self.own, self.now)

    def window(self, parts: Sequence[float], step: float | None = None) -> list[StragglerNews]:
        self.now += WINDOW_STEPS * (max(parts) if step is None else step) + 1e-6
        self.own = {
            rank: (steps + WINDOW_STEPS, seconds + WINDOW_STEPS * parts[rank])
            for rank, (steps, seconds) in self.own.items()
        }
        return self.slow.observe(self.own, self.now)


def told(news: list[StragglerNews]) -> list[tuple[int, bool]]:
    return [(one.rank, one.slow) for one in news]


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_told_once_and_again_when_it_is_over(ranks: int) -> None:
    job = Ranks(ranks)
    slow, even = [1.0] * ranks, [1.0] * ranks
    slow[1] = 2.0
    assert [told(job.window(slow)) for _ in range(WINDOWS + 5)] == [[]] * (WINDOWS - 1) + [[(1, True)]] + [[]] * 5
    assert list(job.slow.slow) == [1]
    over = [told(job.window(even)) for _ in range(WINDOWS_WELL + 5)]
    assert over == [[]] * (WINDOWS_WELL - 1) + [[(1, False)]] + [[]] * 5
    assert job.slow.slow == {}


def test_one_that_comes_and_goes_is_told_once() -> None:
    job = Ranks(3)
    news = [one for number in range(40) for one in job.window([1.0, 1.0 if number % 8 > 3 else 2.0, 1.0])]
    assert told(news) == [(1, True)]


@pytest.mark.parametrize(
    ("parts", "step"),
    [
        ([1.0, 1.3, 1.0, 1.1], None),  # not by half as much again
        ([1.0, 2.0, 3.0, 4.0], None),  # they differ, but nobody from the others
        ([0.1, 1.0, 1.0, 1.0], None),  # a fast one
        ([0.01, 0.05, 0.01, 0.01], 1.0),  # of a step of a second: it costs nobody much
        ([1.0], None),
    ],
)
def test_nobody_is_slow(parts: list[float], step: float | None) -> None:
    job = Ranks(len(parts))
    assert [job.window(parts, step) for _ in range(20)] == [[]] * 20


@pytest.mark.parametrize("seed", range(10))
def test_hiccups_make_nobody_slow(seed: int) -> None:
    """Garbage is collected, a file server holds one rank up, another the next time."""
    chance, job = random.Random(seed), Ranks(4)
    for number in range(50):
        parts = [chance.uniform(0.9, 1.1) for _ in range(4)]
        parts[number % 4] *= chance.choice([1, 1, 5])
        assert job.window(parts) == []


def test_too_few_steps_say_nothing() -> None:
    job = Stragglers()
    for count in range(WINDOW_STEPS):
        assert job.observe({0: (count, 1.0 * count), 1: (count, 9.0 * count)}, 10.0 * count) == []
    assert job.observe({0: (900, 900.0), 1: (0, 0.0)}, 1e6) == [], "one of them does not say"


def test_a_new_attempt_begins_anew() -> None:
    job = Ranks(2)
    for _ in range(WINDOWS):
        job.window([1.0, 2.0])
    job.slow = Stragglers()  # of another attempt
    assert job.slow.slow == {}
    assert job.slow.observe({0: (0, 0.0), 1: (0, 0.0)}, job.now) == []


def test_what_is_said() -> None:
    slow = StragglerNews(3, True, 0.15, 0.04, 0.16)
    assert slow.sentence == (
        "rank 3 is slow: its own part of a step takes 150 ms, the others' 40 ms (median);"
        " they wait for it, a step takes 160 ms"
    )
    assert StragglerNews(3, False, 0.05, 0.04, 0.05).sentence.startswith(
        "rank 3 is no longer slow: its own part of a step"
    )
    answer = {
        "job_id": "j", "state": "running", "attempt": 0, "restarts_left": 1, "max_restarts": 1, "in_memory": 1,
        "committed": 1, "ranks": [], "slow": [slow.sentence],
    }  # fmt: skip
    assert status_lines(answer)[-1] == slow.sentence
