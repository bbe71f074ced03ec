"""A job goes back to an older checkpoint: the saver puts later ones aside, and the loop waits for no file system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoints import empty
from tests.support.engine import World
from tests.support.fakes.clock import BEGIN
from tests.support.fakes.ranks import FakeGroup
from tests.support.fakes.saver import saved

from ftlaunch.policy.states import Event, JobState
from ftlaunch_contract.pages import loss_record
from ftlaunch_contract.pages.loss_record import Bad, LossFault
from ftlaunch_contract.protocol import Resume

NAN = Bad(LossFault.NAN, 2, float("nan"), 16, 24, 0.0, 1, 2)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A job whose first attempt has a NaN at step 9; checkpoints are of the steps 3 and 7, and 3 is healthy."""
    checkpoints = tmp_path / "checkpoints"
    for step in (3, 7):
        empty(checkpoints, step)
    world = World(tmp_path, checkpoint_dir=str(checkpoints), on_nan="rollback")

    def begin(group: FakeGroup) -> None:
        world.train(group, 5, first=8 if len(world.groups) == 1 else 4)
        begun = world.clock() - BEGIN
        if len(world.groups) == 1:
            world.clock.at(
                begun + 2.5, lambda: loss_record.write_losses(world.pages.pages[0], NAN._replace(step=9, newest=9))
            )
        else:
            world.clock.at(begun + 30, lambda: world.finish(group))

    world.on_spawn = begin
    return world


def answers(back: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What the saver says. back: to `go_back`."""

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "go_back":
            return {"did": "go_back", "step": request["step"], **back(request)}
        if request["do"] == "find":
            return {**request, "did": "find", "step": 3 if "healthy_before" in request else 7, "rejected": []}
        return saved(request)

    return answer


def done(request: dict[str, Any]) -> dict[str, Any]:
    return {"aside": "/aside", "skipped": request["skip"], "not_skipped": ""}


def test_the_saver_is_asked_and_its_answer_is_what_the_ranks_begin_with(world: World) -> None:
    world.answer = answers(done)
    world.run()
    assert world.supervisor.state is JobState.DONE, world.said()
    assert world.savers[0].asked[-1]["do"] == "go_back"
    assert world.fields_of("rolled_back") == [{"step": 3, "aside": "/aside", "skipped": [16, 24]}]
    assert "going back to step 3, without samples 16 to 23; later checkpoints are now in /aside" in world.said()
    assert world.pages.pages[0].resume == (Resume.STORAGE, 3)
    assert world.supervisor.saving.committed == 3


def test_storage_that_stands_still_meanwhile_holds_up_no_stop(world: World) -> None:
    """Taken out, where the loop itself renames: nobody hears the stop, and the nodes of a job do not hear the head."""
    asked: list[float] = []

    def stand_still(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(world.clock())
        world.loop.call_at(world.clock() + 3.0, "stop", lambda: world.loop.post(Event.STOP))
        return done(request)

    world.answer = answers(stand_still)
    say = world.savers[0].say
    world.savers[0].say = lambda answer: None if answer["did"] == "go_back" else say(answer)  # type: ignore[method-assign]
    world.run()
    assert asked, "it was asked to go back"
    assert world.supervisor.state is JobState.STOPPED
    assert world.fields_of("rolled_back") == []
    assert world.pages.pages[0].resume[0] is Resume.UNDECIDED, "no rank begins before that is answered"


def test_what_cannot_be_put_aside_ends_the_job_with_a_sentence(world: World) -> None:
    world.answer = answers(lambda request: {"error": "Input/output error"})
    world.run()
    assert world.supervisor.state is JobState.FAILED
    assert world.fields_of("incident")[-1]["cause"] == "cannot put later checkpoints aside: Input/output error"


def test_samples_that_cannot_be_noted_are_said(world: World) -> None:
    world.answer = answers(lambda _: {"aside": "", "skipped": None, "not_skipped": "No space left on device"})
    world.run()
    assert world.supervisor.state is JobState.DONE
    assert "going back to step 3; its samples cannot be skipped (No space left on device)" in world.said()


def test_an_answer_after_the_ranks_have_ended_is_of_the_next_attempt(world: World) -> None:
    """Taken out: the next attempt asks again, and the job says twice that it goes back."""

    def lose_a_rank(request: dict[str, Any]) -> dict[str, Any]:
        world.group.exit(1, -9)
        return done(request)

    world.answer = answers(lose_a_rank)
    world.run()
    assert world.supervisor.state is JobState.DONE, world.said()
    assert len(world.fields_of("rolled_back")) == 1
    assert world.pages.pages[0].resume[0] is Resume.STORAGE
