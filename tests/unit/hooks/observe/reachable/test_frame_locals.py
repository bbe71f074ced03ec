"""Variables of a function as each Python shows them. Needs no torch: it runs on the oldest and the newest Python."""

from __future__ import annotations

import sys

from ftlaunch_hooks.observe.reachable.frame_locals import values_of, write_locals


def test_what_has_a_value_is_found() -> None:
    """Taken out (a set of names & keys()): a TypeError on Python 3.13, in each loop within a function."""
    first, second = 1, 2
    del second
    inner = [values_of(sys._getframe(), {"first", "second", "third"})]
    assert inner == [{"first": first}]


def test_variables_of_a_cell_too() -> None:
    first = 1

    def read() -> int:
        return first

    assert values_of(sys._getframe(), ["first", "read"]) == {"first": read(), "read": read}


def test_a_function_goes_on_with_what_was_written() -> None:
    step, other = 1, 2
    write_locals(sys._getframe(), {"step": 7, "nothing": 0})
    assert (step, other) == (7, 2)
