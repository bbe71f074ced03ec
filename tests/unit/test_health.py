"""Page and clock -> fine or hung; who is the laggard."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftlaunch.health import (
    AUTO_CEILING,
    AUTO_FACTOR,
    AUTO_FLOOR,
    AUTO_STARTUP,
    RankView,
    describe,
    laggard,
    late_ranks,
    limit_for,
    next_check,
)

START = 1000.0
LONG = START + AUTO_STARTUP + 1
TRAINING = RankView(
    rank=0, started=START, beating=True, attached=True, phase="train", step=10, beat=START + 50,
    first_step_done=True, longest_step=2.0, exited=False,
)  # fmt: skip


def view(**changes: Any) -> RankView:
    return replace(TRAINING, **changes)


BARE = view(beating=False, attached=False, phase="startup", step=-1, beat=0.0, first_step_done=False)
BEGUN = replace(BARE, beating=True, beat=START + 1)


@pytest.mark.parametrize(
    ("seen", "hang", "startup", "limit"),
    [
        (view(), 5.0, "auto", 5.0),
        (view(), None, "auto", None),
        (view(longest_step=0.01), "auto", "auto", AUTO_FLOOR),
        (view(longest_step=AUTO_FLOOR / 8), "auto", "auto", AUTO_FLOOR / 8 * AUTO_FACTOR),
        (view(longest_step=AUTO_CEILING), "auto", "auto", AUTO_CEILING),
        (view(first_step_done=False), 5.0, "auto", 50.0),  # it compiles
        (view(first_step_done=False), "auto", "auto", AUTO_CEILING),
        (view(phase="eval"), 5.0, "auto", 50.0),
        (view(phase="checkpoint"), "auto", "auto", AUTO_CEILING),
        (view(phase="teardown"), None, 3.0, None),
        (BEGUN, 5.0, "auto", AUTO_STARTUP),
        (BEGUN, 5.0, 30.0, 30.0),
        (BEGUN, 5.0, None, None),
        (BARE, None, 30.0, 30.0),
    ],
)
def test_limits(seen: RankView, hang: Any, startup: Any, limit: float | None) -> None:
    assert limit_for(seen, hang, startup) == limit


@pytest.mark.parametrize(
    ("views", "now", "awake", "hang", "startup", "late"),
    [
        ([view()], START + 54.9, 0.0, 5.0, "auto", []),
        ([view()], START + 55.1, 0.0, 5.0, "auto", [0]),
        ([view(exited=True)], START + 900, 0.0, 5.0, "auto", []),
        ([view(), view(rank=1, beat=START + 54)], START + 56, 0.0, 5.0, "auto", [0]),
        ([view()], START + 900, START + 897, 5.0, "auto", []),  # the machine was frozen meanwhile
        ([view()], START + 1e6, 0.0, None, "auto", []),
        ([BARE], START + 1e6, 0.0, 5.0, "auto", []),  # an ordinary script: nothing is known of it
        ([BARE], START + 31, 0.0, 5.0, 30.0, [0]),  # but a limit somebody asked for holds
        ([BARE, view(rank=1, beat=LONG)], LONG, 0.0, "auto", "auto", [0]),
        ([BARE, view(rank=1)], LONG, 0.0, None, "auto", []),  # --hang-timeout off
        ([BARE, BEGUN], START + 31, 0.0, None, 30.0, [0]),
    ],
)
def test_late(views: list[RankView], now: float, awake: float, hang: Any, startup: Any, late: list[int]) -> None:
    assert [entry.rank for entry in late_ranks(views, now, awake, hang, startup)] == late


def test_age_counts_from_the_start_of_the_process_not_from_an_old_beat() -> None:
    (entry,) = late_ranks([view(started=START + 60, beat=START)], START + 70, 0.0, 5.0, "auto")
    assert entry.age == 10.0


def test_nobody_is_late_before_the_next_check() -> None:
    views = [view(), view(rank=1, beat=START + 52, longest_step=9.0), view(rank=2, exited=True)]
    check = next_check(views, START + 53, "auto", "auto")
    assert check == START + 50 + AUTO_FLOOR
    assert not late_ranks(views, check - 0.001, 0.0, "auto", "auto")
    assert late_ranks(views, check + 0.001, 0.0, "auto", "auto")
    assert next_check([view(exited=True)], START, 5.0, 5.0) == float("inf")


@pytest.mark.parametrize(
    ("why", "culprit"),
    [
        ("it has not attached", {"attached": False, "step": 99}),
        ("its process is stopped", {"stopped": True, "step": 99}),
        ("it has completed fewer steps", {"step": 9, "beat": START + 99}),
        ("it is not in a collective", {"waiting": False, "beat": START + 99}),
        ("its beat is the oldest", {"beat": START + 49}),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_laggard(why: str, culprit: dict[str, Any], place: int) -> None:
    views = [view(rank=rank, waiting=True) for rank in range(3)]
    views[place] = replace(views[place], **culprit)
    assert laggard(views).rank == place, why


def test_the_dead_are_not_waited_for_unless_all_are_dead() -> None:
    assert laggard([view(step=1, exited=True), view(rank=1)]).rank == 1
    assert laggard([view(exited=True)]).rank == 0


@pytest.mark.parametrize(
    ("culprit", "sentence"),
    [
        (view(rank=3), "rank 3 is hung in training after step 10: no progress for 7.0 s (limit 5.0 s)"),
        (view(phase="eval"), "rank 0 is hung in evaluation after step 10: no progress for"),
        (view(phase="checkpoint"), "rank 0 is hung in checkpoint after"),
        (view(stopped=True), "(limit 5.0 s), its process is stopped (SIGSTOP?)"),
        (BEGUN, "rank 0 has not reached attach() or its first beat 7.0 s after its start (limit 5.0 s)"),
        (BARE, "rank 0 has not beaten once 7.0 s after its start"),
    ],
)
def test_describe(culprit: RankView, sentence: str) -> None:
    (late,) = late_ranks([view()], START + 57, 0.0, 5.0, "auto")
    assert sentence in describe(late, culprit)
