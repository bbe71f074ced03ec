"""Other nodes are asked for, or the next attempt has others: all is saved, and the job goes on. Nothing has failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.engine import World
from tests.support.fakes.clock import BEGIN
from tests.support.fakes.ranks import FakeGroup

from ftlaunch.policy.states import Event, JobState


def training(world: World) -> None:
    """The first attempt trains for long; a later one makes three steps, and the job is done."""

    def spawn(group: FakeGroup) -> None:
        first = group is world.groups[0]
        world.train(group, 100 if first else 3)
        if not first:
            world.clock.at(world.clock() - BEGIN + 5.0, lambda: world.finish(group))

    world.on_spawn = spawn


def post_at(world: World, seconds: float, event: Event) -> None:
    world.clock.at(seconds, lambda: world.loop.post(event))


def stop_ranks(world: World) -> None:
    """They have reached the announced step, hold it, and end."""
    group = world.groups[0]
    for number in group.living:
        world.pages[number].set_slot(0, world.pages[0].stop_at)
        group.ranks[number].stop()
        group.exit(number, 75)


def test_a_pause_saves_the_announced_step_and_goes_on(tmp_path: Path) -> None:
    """Taken out: where the end of the ranks is a failure, a restart is counted."""
    world = World(tmp_path, grace="30s")
    training(world)
    post_at(world, 10.2, Event.PAUSE)
    world.clock.at(14.0, lambda: stop_ranks(world))
    world.run()
    (announced,) = world.fields_of("stop_announced")
    saved = [told["step"] for told in world.fields_of("checkpoint_committed")]
    assert announced["step"] in saved
    assert world.regrouped == [True]
    assert len(world.groups) == 2
    assert world.fields_of("incident") == []
    assert world.supervisor.incidents.budget.left == world.supervisor.incidents.budget.limits.restarts
    assert world.supervisor.state is JobState.DONE


def test_a_stop_during_a_pause_is_a_stop_at_the_same_step(tmp_path: Path) -> None:
    world = World(tmp_path, grace="30s")
    training(world)
    post_at(world, 10.2, Event.PAUSE)
    post_at(world, 11.0, Event.STOP)
    world.clock.at(14.0, lambda: stop_ranks(world))
    world.run()
    assert len(world.fields_of("stop_announced")) == 1
    assert (world.supervisor.state, len(world.groups)) == (JobState.STOPPED, 1)


def test_ranks_that_have_stopped_although_nobody_asked_are_no_end(tmp_path: Path) -> None:
    """A head that has died had told them to. Taken out: the job waits for ranks that have gone."""
    world = World(tmp_path)
    training(world)

    def stopped() -> None:
        for number, rank in world.groups[0].ranks.items():
            world.pages[number].set_slot(0, 8)
            rank.stop()
            world.groups[0].exit(number, 75)

    world.clock.at(8.5, stopped)
    world.run()
    assert 8 in [told["step"] for told in world.fields_of("checkpoint_committed")]
    assert world.fields_of("incident") == []
    assert (world.supervisor.state, len(world.groups)) == (JobState.DONE, 2)


def test_a_failure_during_a_pause_is_judged(tmp_path: Path) -> None:
    world = World(tmp_path, grace="30s")
    training(world)
    post_at(world, 10.2, Event.PAUSE)
    world.clock.at(11.0, lambda: world.groups[0].exit(1, 3))
    world.run()
    assert len(world.fields_of("incident")) == 1
    assert world.supervisor.state is JobState.DONE


def test_ranks_that_do_not_stop_in_time_are_killed_and_that_is_no_failure(tmp_path: Path) -> None:
    world = World(tmp_path, grace="4s")
    training(world)
    post_at(world, 10.2, Event.PAUSE)
    world.run()
    assert "kill" in world.groups[0].calls
    assert world.fields_of("incident") == []
    assert world.supervisor.state is JobState.DONE


def test_before_other_nodes_begin_memory_is_saved(tmp_path: Path) -> None:
    world = World(tmp_path)
    training(world)

    def fail() -> None:
        for page in world.pages.pages:
            page.set_slot(0, 7)
        world.other_nodes = True
        world.groups[0].exit(1, 3)

    world.clock.at(8.0, fail)
    world.run()
    assert 7 in [told["step"] for told in world.fields_of("checkpoint_committed")]
    assert world.regrouped == [True]
    assert world.supervisor.state is JobState.DONE


def test_where_that_cannot_be_saved_the_nodes_are_told_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    training(world)
    world.answer = lambda request: {"did": request["do"], "step": 7, "why": "stop", "error": "No space left"}

    def fail() -> None:
        for page in world.pages.pages:
            page.set_slot(0, 7)
        world.other_nodes = True
        world.groups[0].exit(1, 3)

    world.clock.at(8.0, fail)
    world.clock.at(30.0, lambda: world.loop.post(Event.HURRY))
    world.run()
    assert world.regrouped == [False]


@pytest.mark.parametrize("event", [Event.STOP, Event.HURRY])
def test_a_stop_while_memory_is_saved_ends_the_job(tmp_path: Path, event: Event) -> None:
    world = World(tmp_path)
    world.other_nodes = True
    world.loop.post(event)
    world.run()
    assert (world.supervisor.state, world.groups) == (JobState.STOPPED, [])
