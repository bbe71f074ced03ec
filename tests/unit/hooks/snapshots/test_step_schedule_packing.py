"""An order survives its word of the page, whatever it says."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Why
from ftlaunch_hooks.snapshots.step_schedule import BoundaryOrder, pack, unpack

MOST_STEP, MOST_AGE = 2**31 - 1, 2**24 - 1


@st.composite
def orders(draw: st.DrawFn) -> tuple[int, BoundaryOrder]:
    """A step and what is to be done there; what is kept is of an earlier step."""
    step = draw(st.integers(1, MOST_STEP))
    keep = draw(st.just(NONE) | st.integers(0, step - 1))
    hold = draw(st.none() | st.sampled_from(Why))
    return step, BoundaryOrder(draw(st.booleans()), hold, keep, draw(st.booleans()))


@given(orders())
def test_what_is_unpacked_is_what_was_packed(case: tuple[int, BoundaryOrder]) -> None:
    step, order = case
    word = pack(step, order)
    assert 0 < word < 2**63, "it must fit into a word of the page"
    kept_too_long = order.keep != NONE and step - order.keep > MOST_AGE
    assert unpack(word) == (step, replace(order, keep=NONE) if kept_too_long else order)


@given(orders(), orders())
def test_two_orders_share_a_word_only_when_they_say_the_same(
    one: tuple[int, BoundaryOrder], other: tuple[int, BoundaryOrder]
) -> None:
    same = pack(*one) == pack(*other)
    assert same == (unpack(pack(*one)) == unpack(pack(*other)))


@given(st.integers(0, 2**63 - 1))
def test_any_word_is_either_an_order_or_refused(word: int) -> None:
    """A page of another process is not trusted to hold what pack() wrote: a `why` that is none is a ValueError."""
    try:
        step, order = unpack(word)
    except ValueError:
        assert (word >> 4 & 0xF) > len(Why)
    else:
        assert step == word >> 32
        assert order.keep == NONE or order.keep < step
