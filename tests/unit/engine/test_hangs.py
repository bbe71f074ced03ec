"""Hangs, stragglers and wrong numbers, seen by the real watch on a clock that jumps."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.engine import World
from tests.support.fakes.clock import BEGIN
from tests.support.fakes.ranks import FakeGroup

from ftlaunch.policy.states import JobState


def hangs_once(world: World, at_step: int = 3) -> None:
    """Rank 1 of the first attempt makes no step any more; later attempts train and end."""

    def begin(group: FakeGroup) -> None:
        world.train(group, at_step if group.attempt == 0 else 5)
        begun = world.clock() - BEGIN
        if group.attempt == 0:
            world.clock.at(begun + at_step + 0.5, lambda: group.ranks[0].beat(at_step + 1))
        else:
            world.clock.at(begun + 6, lambda: world.finish(group))

    world.on_spawn = begin


def test_a_hang_is_suspected_then_seen_then_judged(tmp_path: Path) -> None:
    world = World(tmp_path, hang_timeout="60s")
    hangs_once(world)
    world.run()
    (suspected,), (seen,), (incident,) = (world.fields_of(name) for name in ("hang_suspected", "hang_seen", "incident"))
    assert (suspected["rank"], seen["rank"], incident["rank"]) == (1, 1, 1)
    assert suspected["age"] == pytest.approx(30.0, abs=0.5)
    assert seen["age"] == pytest.approx(60.0, abs=0.5)
    assert (incident["kind"], incident["step"], incident["verdict"]) == ("hang", 3, "restart")
    assert "kill" not in world.groups[0].calls, "all have left by themselves"
    assert world.supervisor.state is JobState.DONE


@pytest.mark.parametrize(
    ("others_leave", "seconds", "ranks", "why"),
    [
        (True, 0.2, [1], "rank 1 hangs, and does not leave by itself: SIGKILL"),
        (False, 5.0, [0, 1], "rank 0, 1 did not leave within 5 s of the hang: SIGKILL"),
    ],
)
def test_after_a_hang_ranks_that_are_well_leave_by_themselves_before_any_is_killed(
    tmp_path: Path, *, others_leave: bool, seconds: float, ranks: list[int], why: str
) -> None:
    """Taken out (`_judge_parking`): the hung rank has the grace of an hour."""
    world = World(tmp_path, hang_timeout="60s", grace="1h")
    hangs_once(world)

    def stop_one_or_all() -> None:
        world.groups[0].obeys = others_leave
        world.groups[0].freeze(1)

    world.clock.at(5.0, stop_one_or_all)
    world.run()
    (killed,) = world.fields_of("ranks_killed")
    assert (killed["ranks"], killed["why"]) == (ranks, why)
    assert world.groups[0].killed_at - world.groups[0].asked_at == pytest.approx(seconds, abs=0.3)
    assert world.supervisor.state is JobState.DONE


def test_without_a_limit_nothing_hangs(tmp_path: Path) -> None:
    world = World(tmp_path, hang_timeout="off", exit_timeout="off")
    hangs_once(world)
    world.clock.at(300.0, lambda: world.finish(world.groups[0]))
    world.run()
    assert world.fields_of("hang_seen") == []
    assert len(world.groups) == 1


def test_hangs_have_a_budget_of_their_own(tmp_path: Path) -> None:
    world = World(tmp_path, hang_timeout="60s", max_restarts="5", max_hang_restarts="0")
    hangs_once(world)
    world.run()
    assert world.supervisor.state is JobState.FAILED
    (incident,) = world.fields_of("incident")
    assert "no restarts after hangs are allowed (--max-hang-restarts 0)" in incident["sentence"]
    assert incident["restarts_left"] == 5


def test_a_supervisor_that_was_held_up_sees_no_hang(tmp_path: Path) -> None:
    """A machine that was frozen for an hour: ages count from when the loop is awake again."""
    world = World(tmp_path, hang_timeout="60s")

    def begin(group: FakeGroup) -> None:
        world.train(group, 3)
        world.clock.at(3.5, lambda: setattr(world.clock, "now", world.clock.now + 3600))
        world.clock.at(3650.0, lambda: world.beat(group, 4))
        world.clock.at(3660.0, lambda: world.finish(group))

    world.on_spawn = begin
    world.run()
    assert world.fields_of("hang_seen") == []
    assert world.supervisor.state is JobState.DONE


def test_a_slow_rank_is_told_and_where_asked_for_restarted(tmp_path: Path) -> None:
    world = World(tmp_path, ranks=4, on_slow="restart", max_restarts="1")

    def begin(group: FakeGroup) -> None:
        world.train(group, 200, every=0.1)
        begun = world.clock() - BEGIN

        def work(own: dict[int, int]) -> None:
            for rank, nanoseconds in own.items() if world.group is group else ():
                world.pages[rank].note_own(nanoseconds)

        for number in range(1, 200):
            own = dict.fromkeys(range(4), 10**7) | ({2: 9 * 10**7} if group.attempt == 0 else {})
            world.clock.at(begun + number * 0.1 + 0.01, lambda own=own: work(own))  # type: ignore[misc]
        world.clock.at(begun + 21, lambda: world.finish(group))

    world.on_spawn = begin
    world.run()
    (slow,), (incident,) = world.fields_of("rank_slow"), world.fields_of("incident")
    assert slow["rank"] == incident["rank"] == 2
    assert incident["kind"] == "slow"
    assert len(world.groups) == 2


def test_a_job_whose_loss_is_not_a_number_stops_where_that_is_asked_for(tmp_path: Path) -> None:
    from ftlaunch_contract.pages.loss_record import Bad, LossFault, write_losses

    world = World(tmp_path, on_nan="stop")
    world.on_spawn = lambda group: world.train(group, 50)
    bad = Bad(LossFault.NAN, 7, float("nan"), -1, -1, 0.0, 1, 7)
    world.clock.at(8.0, lambda: write_losses(world.pages[1], bad))
    world.run()
    (unsound,), (incident,) = world.fields_of("unsound"), world.fields_of("incident")
    assert (unsound["kind"], unsound["rank"], unsound["step"], unsound["act"]) == ("nan", 1, 7, "stop")
    assert incident["verdict"] == "give up"
    assert "not restarting (on_nan: stop)" in incident["sentence"]
    assert world.supervisor.state is JobState.FAILED
