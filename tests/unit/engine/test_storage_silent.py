"""A saver that is in a system call that does not come back: the job goes on, says so, and can be stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.checkpoints import empty
from tests.support.engine import World
from tests.support.fakes.clock import BEGIN
from tests.support.fakes.ranks import FakeGroup
from tests.support.fakes.saver import saved

from ftlaunch.policy.states import Event, JobState
from ftlaunch_contract.protocol import Resume, Why


def job(home: Path, steps: int, *, in_memory: int = 3, **asked: str) -> World:
    """A job of so many steps, a second each, whose ranks hold a snapshot, and whose storage does not answer."""
    world = World(home, grace="30s", **asked)
    world.storage_answers = False

    def begin(group: FakeGroup) -> None:
        world.train(group, steps)
        for page in world.pages.pages:
            page.set_slot(0, in_memory)

    world.on_spawn = begin
    return world


def post(world: World, seconds: float, event: Event) -> None:
    world.clock.at(seconds, lambda: world.loop.post(event))


def finish(world: World, seconds: float) -> None:
    world.clock.at(seconds, lambda: world.finish(world.group))


def seconds(world: World) -> float:
    return world.clock() - BEGIN


def test_a_stop_waits_for_the_grace_and_leaves_the_step_in_memory(tmp_path: Path) -> None:
    """Ranks are killed after half of the grace; then storage has the whole of it to give a sign of work."""
    world = job(tmp_path, 3)
    post(world, 5.0, Event.STOP)
    world.run()
    assert world.supervisor.state is JobState.FAILED, "what is not saved is no orderly stop"
    assert seconds(world) == pytest.approx(5.0 + 15.0 + 30.0, abs=1.0)
    place = world.spec.checkpoint_dir
    assert world.supervisor.unsaved() == (
        f"the last snapshot, of step 3, could not be saved: storage has not answered for 30 s ({place}); it stays in"
        f" {tmp_path}/memory: the same `ftlaunch` command goes on from it on this machine, until that is rebooted"
    )


def test_a_second_ctrl_c_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    world = job(tmp_path, 3)
    post(world, 5.0, Event.STOP)
    post(world, 25.0, Event.HURRY)
    world.run()
    assert world.supervisor.state is JobState.FAILED
    assert seconds(world) == pytest.approx(30.0, abs=1.0)


def test_the_end_of_a_job_waits_longer_and_hears_a_stop(tmp_path: Path) -> None:
    world = job(tmp_path, 3)
    finish(world, 5.0)
    world.run()
    assert world.supervisor.state is JobState.DONE, "the work is done"
    assert seconds(world) == pytest.approx(605.0, abs=1.0)
    assert world.supervisor.unsaved()

    (tmp_path / "other").mkdir()
    world = job(tmp_path / "other", 3)
    finish(world, 5.0)
    post(world, 20.0, Event.STOP)
    world.run()
    assert world.supervisor.state is JobState.DONE
    assert seconds(world) == pytest.approx(50.0, abs=1.0)


def test_a_job_that_is_given_up_ends(tmp_path: Path) -> None:
    world = job(tmp_path, 3, max_restarts="0")
    world.clock.at(5.0, lambda: world.group.exit(0, 1))
    post(world, 20.0, Event.HURRY)
    world.run()
    assert world.supervisor.state is JobState.FAILED
    assert seconds(world) < 60.0
    assert "it stays in" in world.supervisor.unsaved()


def test_storage_that_works_slowly_is_waited_for(tmp_path: Path) -> None:
    """Taken out (`judge` gives up at once): the step is left in memory though the saver was writing it."""
    world = job(tmp_path, 3)

    def write() -> None:
        world.savers[0].moved += 1

    for second in range(5, 200, 5):
        world.clock.at(second, write)
    world.clock.at(200.0, lambda: world.savers[0].say(world.answer(world.savers[0].asked[-1])))
    post(world, 5.0, Event.STOP)
    world.run()
    assert world.supervisor.state is JobState.STOPPED
    assert seconds(world) == pytest.approx(200.0, abs=1.0)
    assert world.supervisor.unsaved() == ""


def test_training_goes_on_and_it_is_said_again_and_again(tmp_path: Path) -> None:
    world = job(tmp_path, 2000, storage_interval="10")

    def hold() -> None:
        for page in world.pages.pages:
            page.set_slot(1, 10)
            page.hold_for_saver(10, Why.INTERVAL)

    world.clock.at(10.5, hold)
    world.clock.at(1500.0, lambda: world.savers[0].say(world.answer(world.savers[0].asked[-1])))
    post(world, 1600.0, Event.STOP)
    world.run()
    told = [event["seconds"] for event in world.fields_of("storage_silent")]
    assert told == pytest.approx([60, 180, 420, 900], abs=12)
    (answers,) = world.fields_of("storage_answers")
    assert answers["seconds"] == pytest.approx(1490, abs=12)
    assert [line for line in world.said() if "there is no checkpoint yet; waiting for it" in line]
    assert world.fields_of("incident") == []


def test_ranks_that_wait_for_a_checkpoint_are_not_hung(tmp_path: Path) -> None:
    """Storage does not answer when the job begins: no restart is spent, and a stop ends the job."""
    world = job(tmp_path, 0, in_memory=-1, startup_timeout="60s")
    empty(world.spec.checkpoint_dir, 5)
    world.supervisor.saving.committed = 5
    world.on_spawn = lambda group: None
    post(world, 900.0, Event.STOP)
    world.run()
    assert world.pages[0].resume[0] == Resume.UNDECIDED
    assert len(world.groups) == 1
    assert world.fields_of("incident") == []
    assert world.fields_of("storage_silent")[0]["newest"] == 5
    assert world.supervisor.state is JobState.STOPPED, "there is nothing to save"
    assert seconds(world) < 1000.0


def test_a_saver_that_was_stopped_holds_up_no_end(tmp_path: Path) -> None:
    """Taken out: a job whose ranks are done waits for ever."""
    world = job(tmp_path, 3)
    world.savers[0].stopped = world.storage_answers = True
    finish(world, 5.0)
    world.run()
    assert world.supervisor.state is JobState.DONE
    assert world.fields_of("checkpoint_committed")[-1]["step"] == 3
    assert len(world.savers) == 2, "another one has its place"


def test_memory_decides_nothing_before_storage_was_listed(tmp_path: Path) -> None:
    """Memory may be older than storage. Taken out: the job goes on from step 3, and step 7 is forgotten."""
    checkpoints = tmp_path / "checkpoints"
    empty(checkpoints, 7)
    world = World(tmp_path, checkpoint_dir=str(checkpoints))
    for page in world.pages.pages:
        page.set_slot(0, 3)
    world.files.thread.answers = False
    world.clock.at(5.0, lambda: setattr(world.files.thread, "answers", True))
    world.answer = lambda request: (
        {"did": "find", "step": 7, "rejected": []} if request["do"] == "find" else saved(request)
    )
    resumed: list[tuple[Resume, int]] = []

    def begin(group: FakeGroup) -> None:
        world.train(group, 3)
        begun = world.clock() - BEGIN
        world.clock.at(begun + 2, lambda: resumed.append(world.pages.pages[0].resume))
        world.clock.at(begun + 4, lambda: world.finish(group))

    world.on_spawn = begin
    world.run()
    assert resumed == [(Resume.STORAGE, 7)]
    assert "does not answer: the next attempt waits for it" in "".join(world.said())
