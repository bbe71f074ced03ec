"""A job that is told to stop: the step is announced, the ranks leave, the newest step is saved."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.engine import World
from tests.support.fakes.clock import BEGIN
from tests.support.fakes.ranks import FakeGroup

from ftlaunch.policy.states import Event, JobState
from ftlaunch_contract.protocol import Why


def training(world: World, steps: int = 100) -> None:
    world.on_spawn = lambda group: world.train(group, steps)


def stop_at(world: World, seconds: float) -> None:
    world.clock.at(seconds, lambda: world.loop.post(Event.STOP))


def test_the_ranks_go_on_to_the_announced_step(tmp_path: Path) -> None:
    world = World(tmp_path, grace="30s")
    training(world)
    stop_at(world, 10.2)

    def leave() -> None:
        group = world.group
        assert world.pages[0].stop_at == world.pages[1].stop_at >= 12
        for rank in group.living:
            group.ranks[rank].stop()
            group.exit(rank, 75)

    world.clock.at(14.0, leave)
    world.run()
    (announced,) = world.fields_of("stop_announced")
    assert announced["front"] == 10
    assert announced["step"] == world.pages[0].stop_at
    assert world.supervisor.state is JobState.STOPPED
    assert "kill" not in world.group.calls
    assert world.fields_of("incident") == []


def test_ranks_that_are_stuck_are_killed_after_half_of_the_grace(tmp_path: Path) -> None:
    world = World(tmp_path, grace="30s")
    world.on_spawn = lambda group: world.train(group, 3)
    stop_at(world, 5.0)
    world.run()
    assert world.group.calls[-2:] == ["kill", "sweep"]
    assert world.clock() == pytest.approx(BEGIN + 5.0 + 15.0, abs=0.5)
    assert world.supervisor.state is JobState.STOPPED


def test_a_second_ctrl_c_kills_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, grace="30s")
    world.on_spawn = lambda group: world.train(group, 3)
    stop_at(world, 5.0)
    world.clock.at(6.0, lambda: world.loop.post(Event.HURRY))
    world.run()
    assert world.clock() == pytest.approx(BEGIN + 6.0, abs=0.5)
    assert "kill" in world.group.calls


def test_without_a_step_in_this_attempt_the_ranks_are_told_to_leave_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    stop_at(world, 5.0)
    world.run()
    assert world.fields_of("stop_announced") == []
    assert "ask to leave" in world.group.calls
    assert world.clock() == pytest.approx(BEGIN + 5.0, abs=0.5)


def test_a_stop_before_the_first_attempt_starts_none(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.may_begin = False
    stop_at(world, 5.0)
    world.run()
    assert world.groups == []
    assert world.supervisor.state is JobState.STOPPED


def test_a_stop_during_the_backoff_ends_the_wait(tmp_path: Path) -> None:
    world = World(tmp_path, backoff_first="100s", backoff_max="100s", max_restarts="5")
    world.on_spawn = lambda group: world.clock.at(world.clock() - BEGIN + 1, lambda: group.exit(0, 9))
    stop_at(world, 20.0)
    world.run()
    assert world.supervisor.state is JobState.STOPPED
    assert world.clock() == pytest.approx(BEGIN + 20.0, abs=0.5)


@pytest.mark.parametrize("full", [False, True])
def test_the_last_snapshot_of_all_ranks_is_saved(tmp_path: Path, full: bool) -> None:
    world = World(tmp_path, grace="10s")

    def begin(group: FakeGroup) -> None:
        world.train(group, 3)
        for page in world.pages.pages:
            page.set_slot(0, 3)

    world.on_spawn = begin
    stop_at(world, 5.0)
    if full:
        world.answer = lambda request: {"did": "save", "step": 3, "why": "stop", "error": "the disk is full"}
    world.run()
    (request,) = world.savers[0].asked
    assert (request["do"], request["step"], request["why"]) == ("save", 3, Why.STOP.name.lower())
    if full:
        assert world.supervisor.state is JobState.FAILED, "what could not be saved is no orderly stop"
        assert world.supervisor.final_save.error == "the disk is full"
        assert [event["error"] for event in world.fields_of("checkpoint_failed")] == ["the disk is full"]
    else:
        assert world.supervisor.state is JobState.STOPPED
        assert world.supervisor.saving.committed == 3
