"""Which names go from one pass of a loop into the next, for loops as people write them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from ftlaunch_hooks.observe.reachable.loop_names import LoopNames, loop_names

seen: list[LoopNames] = []


def steps(total: int) -> Iterator[int]:
    """Looks at the loop over it, as Job.steps() does."""
    for step in range(total):
        note(2)
        yield step


def note(up: int = 1) -> None:
    frame = sys._getframe(up)
    seen.append(loop_names(frame.f_code, frame.f_lasti))


def names_of(loop: Callable[[], Any]) -> LoopNames:
    """What every look at a loop has found."""
    seen.clear()
    loop()
    assert seen
    assert len(set(seen)) == 1
    return seen[0]


def carries() -> None:
    hidden, best, unread = 0, 9.0, 0
    for step in steps(3):
        out = step + hidden
        hidden = out
        best = min(best, out)
        unread = out  # overwritten before it is read
        str(unread)


def only_in_a_branch() -> None:
    last = None
    for step in steps(3):
        if step % 2:
            last = step
        elif last is not None:
            print(end=str(last)[:0])


def makes_anew() -> None:
    for step in steps(3):
        loss = step * 2
        if loss > 2:
            loss += 1
        total = 0
        for one in (1, 2):
            total += one
        del total


def over_epochs() -> None:
    for epoch in range(2):
        average = 0.0
        for number, (step, (one, other)) in zip((7, 8), zip(steps(2), ((1, 2), (3, 4)), strict=True), strict=True):
            average += epoch + number + step + one + other


def over_epochs_with_names_of_each() -> None:
    best = 9
    for epoch in range(2):
        file, worst = f"epoch {epoch}", 0
        for step in steps(2):
            worst = max(worst, step)
        best = min(best, worst)
        str(file)


def of_its_own() -> None:
    count = 0
    while True:
        note()
        count += 1
        if count == 3:
            break


def in_the_middle() -> None:
    kept = 0
    for step in range(3):
        made = step + kept
        note()
        kept = made
        str(step)


def in_the_middle_of_a_while() -> None:
    kept, made = 0, 0
    while kept < 3:
        made = kept + 1
        note()
        kept = made


def in_a_closure() -> None:
    seed = 0

    def draw() -> int:
        nonlocal seed
        seed += 1
        return seed

    for _ in steps(2):
        draw()


def without_a_loop() -> None:
    count = 1
    note()
    count += 1


def test_what_is_read_before_it_is_stored_is_carried() -> None:
    """Tried: it fails where the lines are gone through once, and where a `for`'s own names count."""
    assert names_of(carries).carried == {"hidden", "best"}
    assert names_of(carries).stored == {"step", "out", "hidden", "best", "unread"}
    assert names_of(only_in_a_branch).carried == {"last"}
    assert names_of(makes_anew).carried == set()
    assert names_of(of_its_own).carried == {"count"}


def test_what_a_pass_makes_and_reads_itself_is_not_carried_wherever_the_boundary_is() -> None:
    """Tried: it fails where the boundary is taken for the beginning of a pass."""
    assert names_of(in_the_middle).carried == {"kept"}
    assert names_of(in_the_middle_of_a_while).carried == {"kept"}


def test_outer_loops_count_and_what_their_for_gives_does_not() -> None:
    names = names_of(over_epochs)
    assert names.carried == {"average"}
    assert "epoch" in names.read


def test_what_an_outer_pass_stores_and_no_inner_one_is_made_again() -> None:
    """Taken out: a name that each epoch gives itself is told as lost."""
    assert names_of(over_epochs_with_names_of_each).carried == {"best", "worst"}


def test_nothing_is_carried_where_there_is_no_loop() -> None:
    assert names_of(without_a_loop) == LoopNames(frozenset(), frozenset(), frozenset())


def test_what_a_function_in_it_stores_is_read_in_the_loop_at_most() -> None:
    assert "draw" in names_of(in_a_closure).read
    assert names_of(in_a_closure).carried == set()
