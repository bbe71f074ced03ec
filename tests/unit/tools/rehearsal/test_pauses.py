"""The longest pause between two steps is found, and even steps have none."""

from __future__ import annotations

from ftlaunch.tools.rehearsal.pauses import Pause, StepTimes


def times(*seen: tuple[int, float, str]) -> StepTimes:
    noted = StepTimes()
    for step, at, phase in seen:
        noted.note(step, phase, at)
    return noted


def test_the_longest_pause() -> None:
    even = [(step, step / 8, "train") for step in range(8)]
    late = [(step, step / 8 + 2.0, "train") for step in range(8, 13)]
    assert times(*even, *late).longest_pause(12) == Pause(7, 2.125, "train")


def test_what_the_ranks_said_in_it_stays() -> None:
    before, after = [(1, 0.0, "train"), (2, 0.1, "train")], [(3, 1.0, "train"), (4, 1.1, "train")]
    assert times(*before, (2, 0.2, "eval"), (2, 0.9, "train"), *after).longest_pause(10) == Pause(2, 0.9, "eval")


def test_even_steps_have_none() -> None:
    assert times(*((step, step / 10, "train") for step in range(20))).longest_pause(20) is None
    assert times(*((step, step / 1000, "train") for step in range(20))).longest_pause(20) is None
    assert times().longest_pause(20) is None
    assert times((3, 1.0, "train")).longest_pause(20) is None


def test_the_first_step_and_the_time_after_the_last_are_none() -> None:
    """The first step compiles and fills caches; behind the last one the rehearsal waits for the save."""
    seen = [(0, 0.0, "train"), *((step, 5.0 + step / 10, "train") for step in range(1, 11)), (11, 9.0, "train")]
    assert times(*seen).longest_pause(10) is None


def test_steps_that_were_too_short_to_be_seen() -> None:
    seen = [(step, step / 200, "train") for step in range(0, 40, 4)]
    seen += [(step, step / 200 + 1.0, "train") for step in range(40, 60, 4)]
    found = times(*seen).longest_pause(60)
    assert found is not None
    assert found.step == 36
