"""Page and clock -> fine or hung; who is the laggard."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.views import START, view

from ftlaunch.health.hang_detection import (
    MUTE_FLOOR_SECONDS,
    describe,
    laggard,
    laggard_entry,
    late_ranks,
    limit_for,
    suspects,
    waits,
)
from ftlaunch.health.time_limits import AUTO_CEILING_SECONDS, BOUNDS, TimeLimits
from ftlaunch.ranks.view import RankView

AUTO_FLOOR, AUTO_STARTUP = BOUNDS["train"][0], BOUNDS["startup"][0]
LONG = START + AUTO_STARTUP + 1


def asked(hang: Any, startup: Any = "auto", longest: float = 2.0, **more: Any) -> TimeLimits:
    kinds = {name: limit for name, limit in more.items() if name not in ("log", "idle")}
    rules = {name: limit for name, limit in more.items() if name in ("log", "idle")}
    return TimeLimits({"train": hang, "startup": startup, **kinds}, {"train": longest}, **rules)


BARE = view(beating=False, attached=False, phase="startup", step=-1, beat=0.0, first_step_done=False)
BEGUN = BARE._replace(beating=True, beat=START + 1)
OBSERVED = view(attached=False, observed=True)


@pytest.mark.parametrize(
    ("seen", "hang", "startup", "limit"),
    [
        (view(), 5.0, "auto", 5.0),
        (view(), None, "auto", None),
        (view(), "auto", "auto", AUTO_FLOOR),
        (view(busy=True), "auto", "auto", AUTO_CEILING_SECONDS),  # a data loader's worker works
        (view(busy=True), 5.0, "auto", 5.0),
        (OBSERVED._replace(busy=True), 5.0, "auto", 5.0),
        (view(first_step_done=False), 5.0, "auto", 5.0),
        (view(first_step_done=False), 5.0, 30.0, 30.0),  # it compiles
        (view(first_step_done=False), None, "auto", None),
        (view(first_step_done=False), "auto", "auto", AUTO_CEILING_SECONDS),
        (view(phase="eval"), 5.0, "auto", 5.0),
        (view(phase="checkpoint"), "auto", "auto", AUTO_CEILING_SECONDS),
        (view(phase="teardown"), None, 3.0, None),
        (BEGUN, 5.0, "auto", 5.0),
        (BEGUN, "auto", "auto", AUTO_STARTUP),
        (BEGUN, 5.0, 30.0, 30.0),
        (BEGUN, 5.0, None, None),
        (BARE, None, 30.0, 30.0),
    ],
)
def test_limits(seen: RankView, hang: Any, startup: Any, limit: float | None) -> None:
    assert limit_for(waits([seen])[0], asked(hang, startup)) == limit


@pytest.mark.parametrize(
    ("views", "now", "awake", "hang", "startup", "late"),
    [
        ([view()], START + 54.9, 0.0, 5.0, "auto", []),
        ([view()], START + 55.1, 0.0, 5.0, "auto", [0]),
        ([view(exited=True)], START + 900, 0.0, 5.0, "auto", []),
        ([view(), view(rank=1, beat=START + 54)], START + 56, 0.0, 5.0, "auto", [0]),
        ([view()], START + 900, START + 897, 5.0, "auto", []),  # the machine was frozen meanwhile
        ([view()], START + 1e6, 0.0, None, "auto", []),
        ([BARE], START + 1e6, 0.0, "auto", "auto", []),  # an ordinary program: nothing is known of it
        ([BARE], START + 19, 0.0, 20.0, "auto", []),
        ([BARE], START + 21, 0.0, 20.0, "auto", [0]),  # but a limit somebody asked for holds, of its activity
        ([BARE._replace(active=START + 40)], START + 59, 0.0, 20.0, "auto", []),
        ([BARE._replace(active=START + 40)], START + 61, 0.0, 20.0, "auto", [0]),
        ([BARE], START + MUTE_FLOOR_SECONDS - 1, 0.0, 0.1, "auto", []),
        ([BARE._replace(active=START + 40)], START + 69, 0.0, 5.0, 30.0, []),
        ([BARE._replace(active=START + 40), view(rank=1, beat=START + 69)], START + 69, 0.0, 5.0, 30.0, [0]),
        ([BEGUN], LONG - 2, 0.0, "auto", "auto", []),  # it has imported torch, and does nothing for half an hour
        ([BEGUN], LONG + 2, 0.0, "auto", "auto", [0]),
        ([BEGUN._replace(active=LONG)], LONG + 2, 0.0, "auto", "auto", []),
        ([OBSERVED], START + 54.9, 0.0, 5.0, "auto", []),
        ([OBSERVED], START + 55.1, 0.0, 5.0, "auto", [0]),
        ([OBSERVED._replace(busy=True)], START + 54.9, 0.0, 5.0, "auto", []),
        ([OBSERVED._replace(busy=True)], START + 55.1, 0.0, 5.0, "auto", [0]),
        ([view(busy=True)], START + 55.1, 0.0, 5.0, "auto", [0]),  # who attaches says what it does
        ([OBSERVED._replace(first_step_done=False)], START + 59, 0.0, 5.0, 10.0, []),
        ([OBSERVED], START + 50 + AUTO_FLOOR - 1, 0.0, "auto", "auto", []),
        ([OBSERVED], START + 50 + AUTO_FLOOR + 1, 0.0, "auto", "auto", [0]),
        ([BARE], START + 31, 0.0, 5.0, 30.0, [0]),  # but a limit somebody asked for holds
        ([BARE, view(rank=1, beat=LONG)], LONG, 0.0, "auto", "auto", [0]),
        ([BARE, view(rank=1)], LONG, 0.0, None, "auto", []),  # --hang-timeout off
        ([BARE, BEGUN], START + 31, 0.0, None, 30.0, [0]),
    ],
)
def test_late(views: list[RankView], now: float, awake: float, hang: Any, startup: Any, late: list[int]) -> None:
    assert [entry.rank for entry in late_ranks(waits(views), now, awake, asked(hang, startup))] == late


def test_age_counts_from_the_start_of_the_process_not_from_an_old_beat() -> None:
    (entry,) = late_ranks(waits([view(started=START + 60, beat=START)]), START + 70, 0.0, asked(5.0))
    assert entry.age == 10.0


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
    views[place] = views[place]._replace(**culprit)
    assert laggard(views).rank == place, why


def test_of_ranks_that_say_nothing_it_is_the_one_that_does_nothing() -> None:
    mute = [BARE._replace(rank=rank, active=START + 9 - rank) for rank in range(3)]
    assert laggard(mute).rank == 2


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
        (BEGUN, "rank 0 has not reached attach() or an optimizer step 7.0 s after its start (limit 5.0 s)"),
        (BARE, "rank 0 has not said anything 7.0 s after its start"),
        (OBSERVED, "rank 0 is hung: no optimizer step for 7.0 s (limit 5.0 s)"),
        (OBSERVED._replace(stopped=True), "(limit 5.0 s), its process is stopped (SIGSTOP?)"),
    ],
)
def test_describe(culprit: RankView, sentence: str) -> None:
    (late,) = late_ranks(waits([view()]), START + 57, 0.0, asked(5.0))
    assert sentence in describe(late, culprit)


def test_who_does_nothing_is_said_to_do_nothing() -> None:
    (late,) = late_ranks(waits([BEGUN]), LONG + 2, 0.0, asked("auto"))
    assert "has not reached attach() or an optimizer step, has done nothing for 30 min" in describe(late, BEGUN)


@pytest.mark.parametrize(
    ("seen", "age", "hang", "startup", "suspected"),
    [
        (view(), 2.4, 5.0, "auto", False),
        (view(), 2.6, 5.0, "auto", True),
        (view(phase="eval"), 2.4, 5.0, "auto", False),
        (view(phase="eval"), 2.6, 5.0, "auto", True),
        (view(), AUTO_FLOOR / 2 - 1, "auto", "auto", False),
        (view(), AUTO_FLOOR / 2 + 1, "auto", "auto", True),
        (view(exited=True), 1e6, 5.0, "auto", False),
        (view(), 1e6, None, "auto", False),
    ],
)
def test_half_the_limit_makes_a_suspect(seen: RankView, age: float, hang: Any, startup: Any, suspected: bool) -> None:
    found = suspects(waits([seen]), seen.beat + age, 0.0, asked(hang, startup))
    assert [entry.rank for entry in found] == ([0] if suspected else [])
    if found:
        assert found[0].limit == limit_for(waits([seen])[0], asked(hang, startup)), (
            "the limit itself is told, not its half"
        )


def test_the_suspect_named_is_the_laggard() -> None:
    views = [view(), view(rank=1, step=9)]
    found = suspects(waits(views), START + 53, 0.0, asked(5.0))
    assert laggard_entry(found, views).rank == 1
    assert laggard_entry(found[:1], views).rank == 0


DONE = view(rank=1, phase="teardown", exited=True, ended=START + 60)


@pytest.mark.parametrize(
    ("views", "age", "limits", "late"),
    [
        ([view(), DONE], 9.0, asked(None, exit=10.0), []),
        ([view(), DONE], 11.0, asked(None, exit=10.0), [(0, "exit")]),
        ([view(), view(rank=1)], 1e6, asked(None, exit=10.0), []),  # nobody is done
        ([view(beat=START + 69), DONE], 11.0, asked(None, exit=10.0), []),  # it moves on
        ([BARE._replace(active=START + 69), DONE], 11.0, asked(None, None, exit=10.0), [(0, "exit")]),
        ([BARE._replace(active=START + 69), BARE._replace(rank=1, exited=True, ended=START + 60)], 11.0,
         asked(None, None, exit=10.0), []),
        ([BARE, BARE._replace(rank=1, exited=True, ended=START + 60)], 1e6, asked("auto"), []),  # nothing known
        ([BEGUN, BEGUN._replace(rank=1, exited=True, ended=START + 60)], AUTO_CEILING_SECONDS + 9, asked("auto", None),
         [(0, "exit")]),
        ([view(phase="teardown"), DONE], 1e6, asked("auto", exit=None, teardown=None), []),
        ([view(phase="teardown"), DONE], 11.0, asked(5.0, teardown=30.0), []),
        ([view(phase="teardown"), DONE], 11.0, asked(5.0, teardown=30.0, exit=10.0), [(0, "exit")]),
        ([view(logged=START + 60)], 29.0, asked(None, log=30.0), []),
        ([view(logged=START + 60, beat=START + 90)], 31.0, asked(None, log=30.0), [(0, "log")]),
        ([view(logged=START + 60), view(rank=1, logged=START + 65)], 31.0, asked(None, log=30.0), []),
        ([view(active=START + 60)], 29.0, asked(None, idle=30.0), []),
        ([view(active=START + 60)], 31.0, asked(None, idle=30.0), [(0, "idle")]),
        ([view(active=START + 60), view(rank=1, beat=START + 65)], 31.0, asked(None, idle=30.0), []),
        ([view(phase="eval")], 20.0, asked(None, eval=35.0), []),
        ([view(phase="eval")], 20.0, asked(None, eval=15.0), [(0, "progress")]),
        ([view(phase="teardown")], 20.0, asked(1.0, teardown=15.0), [(0, "progress")]),
        ([view(phase="checkpoint")], 20.0, asked(1.0, checkpoint=None), []),
    ],
)  # fmt: skip
def test_rules_beside_steps(views: list[RankView], age: float, limits: TimeLimits, late: list[tuple[int, str]]) -> None:
    """Ages are from START + 60."""
    found = late_ranks(waits(views), START + 60 + age, 0.0, limits)
    assert [(entry.rank, entry.rule) for entry in found] == late


def test_a_machine_that_was_frozen_made_nobody_silent() -> None:
    seen = view(logged=START + 60, active=START + 60)
    assert late_ranks(waits([seen]), START + 900, START + 890, asked(None, log=30.0, idle=30.0, exit=30.0)) == []


@pytest.mark.parametrize(
    ("views", "limits", "sentence"),
    [
        (
            [view(), DONE],
            asked(None, exit=10.0),
            "rank 0 has neither ended nor moved on for 40 s while others are done",
        ),
        (
            [view()],
            asked(None, log=10.0),
            "no rank has written a line of log for 100 s (limit 10 s); rank 0 is the one",
        ),
        (
            [view()],
            asked(None, idle=10.0),
            "no rank has used a processor, read, written or made a step for 50 s (limit",
        ),
    ],
)
def test_each_rule_says_what_was_measured(views: list[RankView], limits: TimeLimits, sentence: str) -> None:
    (late,) = late_ranks(waits(views), START + 100, 0.0, limits)
    assert sentence in describe(late, laggard(views))


EVAL = view(rank=1, phase="eval", beat=START + 52)


@pytest.mark.parametrize(
    ("other", "age", "late"),
    [
        (EVAL, 40.0, []),  # fifty seconds, from START + 52
        (EVAL, 53.0, [0, 1]),
        (EVAL._replace(step=9), 40.0, []),
        (EVAL._replace(step=11), 40.0, [0]),  # it is not what this rank waits for
        (EVAL._replace(exited=True), 40.0, [0]),
        (view(rank=1, beat=START + 90, left=START + 90), 43.0, []),  # back in training
        (view(rank=1, beat=START + 90, left=START + 90), 46.0, [0, 1]),
        (view(rank=1, beat=START + 90), 41.0, [0]),
    ],
)
def test_who_waits_for_a_rank_that_evaluates(other: RankView, age: float, late: list[int]) -> None:
    """Ages are of rank 0's last beat, START + 50."""
    found = late_ranks(waits([view(), other]), START + 50 + age, 0.0, asked(5.0, eval=50.0, exit=50.0))
    assert sorted(entry.rank for entry in found) == late


# --- many ranks --------------------------------------------------------------------------------------------


def test_a_rank_that_has_left_its_loop_is_not_behind_by_its_steps() -> None:
    """Uneven inputs: the one in training sleeps, the other waits in a collective. Its limit counts from their beats."""
    trains = view(step=12, waiting=False, beat=START + 90)
    left = view(rank=1, step=6, phase="teardown", waiting=True, beat=START + 60)
    assert laggard([trains, left]).rank == 0
    assert laggard([trains._replace(waiting=True), left._replace(waiting=False)]).rank == 1
    assert {wait.view.rank: wait.since for wait in waits([trains, left])}[1] == START + 90
