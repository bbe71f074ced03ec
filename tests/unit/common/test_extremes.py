"""Values of many ranks in three."""

from __future__ import annotations

from ftlaunch.common.outliers import extremes


def test_few_are_told_one_by_one() -> None:
    assert extremes([(0, 1.23456789), (5, 2.0)], 8) == [[0, 1.23457], [5, 2.0]]
    assert extremes([], 8) == []


def test_of_many_the_lowest_the_median_and_the_highest() -> None:
    assert extremes([(rank, (rank * 7) % 11) for rank in range(11)], 8) == [[0, 0.0], [7, 5.0], [3, 10.0]]
