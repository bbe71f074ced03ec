"""Looks that do not come back hold up nothing but themselves."""

from __future__ import annotations

import threading
import time

import pytest

from ftlaunch.system.patience import call_for_all


def test_each_place_is_seen_in_its_order() -> None:
    assert call_for_all(range(500), lambda number: number * 2) == [number * 2 for number in range(500)]
    assert call_for_all([], lambda number: number) == []


def test_a_look_that_does_not_come_back_is_none_and_the_others_are_seen() -> None:
    """With a fixed number of threads the forty would have taken all of them."""
    release = threading.Event()
    try:
        seen = call_for_all(
            range(100), lambda number: number if number >= 40 else release.wait() and -1, patience_seconds=1.0
        )
    finally:
        release.set()
    assert seen == [None] * 40 + list(range(40, 100))


def test_slow_looks_that_come_back_are_waited_for() -> None:
    """One deadline for all of them called the last ones silent."""

    def look(number: int) -> int:
        time.sleep(0.2)  # the look itself is slow
        return number

    assert call_for_all(range(64), look, patience_seconds=1.5) == list(range(64))


def test_what_a_look_raises_is_raised() -> None:
    def look(_: int) -> int:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        call_for_all([1], look)
