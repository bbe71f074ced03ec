"""Numbers of places for people."""

from __future__ import annotations

import pytest

from ftlaunch.common.formatting import counted, stretches, times


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([], ""),
        ([4], "4"),
        ([4, 5], "4, 5"),
        ([0, 1, 2], "0 to 2"),
        ([0, 3, 4, 7, 8, 9, 10], "0, 3, 4, 7 to 10"),
        (range(2048), "0 to 2047"),
    ],
)
def test_numbers_in_a_row_are_a_stretch(numbers: list[int], words: str) -> None:
    assert stretches(numbers) == words


def test_numbers_of_things_in_words() -> None:
    assert [counted(number, "step") for number in (0, 1, 2)] == ["no steps", "1 step", "2 steps"]
    assert [times(number) for number in (1, 2, 3)] == ["once", "twice", "3 times"]
