"""By what a generator sees that its loop was left by `break`."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import suppress

from ftlaunch_hooks.job.early_end import EarlyEnd, is_left_by_break

seen: list[bool] = []


def steps() -> Generator[int]:
    try:
        yield from range(10)
    except GeneratorExit:
        seen.append(is_left_by_break(sys._getframe().f_back))
        raise


def wrapped() -> Iterator[int]:
    for step in steps():
        yield 1 * step


def returns() -> int:
    for step in steps():
        if step == 3:
            return step
    return -1


def test_break_and_return_are_told_from_an_exception() -> None:
    seen.clear()
    for step in steps():
        if step == 3:
            break
    for _, step in enumerate(steps()):
        if step == 3:
            break
    for step in wrapped():
        if step == 3:
            break
    returns()
    assert seen == [True] * 4


def test_what_raises_or_closes_is_no_break() -> None:
    seen.clear()
    for source in (steps, wrapped):
        with suppress(ValueError):
            for step in source():
                if step == 3:
                    raise ValueError
    with suppress(ZeroDivisionError):
        for step in steps():
            print(1 // (2 - step))
    closed = steps()
    next(closed)
    closed.close()
    assert seen == [False] * 4


def test_an_endless_loop_has_no_number_of_steps() -> None:
    assert "at step 5 of 9:" in EarlyEnd(9, None).sentence(5, "")
    assert "at step 5:" in EarlyEnd(1 << 40, None).sentence(5, "")
