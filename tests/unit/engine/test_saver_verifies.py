"""A saver that is killed while it verifies what a job is to go on from: that says nothing against a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoints import empty
from tests.support.engine import World
from tests.support.fakes.clock import BEGIN
from tests.support.fakes.ranks import FakeGroup
from tests.support.fakes.saver import saved

from ftlaunch.policy.states import JobState
from ftlaunch_contract.protocol import Resume


def job(home: Path, deaths: int) -> World:
    """A job whose newest step is in storage alone; so many savers are killed, one after another."""
    checkpoints = home / "checkpoints"
    empty(checkpoints, 7)
    world = World(home, checkpoint_dir=str(checkpoints))

    def begin(group: FakeGroup) -> None:
        world.train(group, 3)
        world.clock.at(world.clock() - BEGIN + 4, lambda: world.finish(group))

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        return {"did": "find", "step": 7, "rejected": []} if request["do"] == "find" else saved(request)

    world.on_spawn, world.answer = begin, answer

    def kill() -> None:
        world.savers[-1].die()

    for number in range(deaths):
        world.clock.at(0.2 + 0.2 * number, kill)
    return world


@pytest.mark.parametrize("deaths", [1, 4])
def test_it_is_asked_again(tmp_path: Path, deaths: int) -> None:
    """Taken out: with two tries the second death ends the job, and blames the checkpoint."""
    world = job(tmp_path, deaths)
    world.run()
    assert len(world.fields_of("saver_died")) == deaths
    assert [one["do"] for saver in world.savers[: deaths + 1] for one in saver.asked[:1]] == ["find"] * (deaths + 1)
    assert world.pages.pages[0].resume == (Resume.STORAGE, 7)


def test_it_is_not_asked_for_ever(tmp_path: Path) -> None:
    world = job(tmp_path, 5)
    world.run()
    assert world.supervisor.state is JobState.FAILED
    place = world.spec.checkpoint_dir
    assert world.fields_of("incident")[0]["cause"] == (
        f"cannot resume: what is in {place} could not be verified: the saver died 5 times over it (-9); nothing there"
        " was changed, and the same command tries it again"
    )


def test_an_older_step_in_memory_is_taken_up_instead_and_that_is_said(tmp_path: Path) -> None:
    """Taken out: the job ends, though its ranks' memory has a state to go on from."""
    world = job(tmp_path, 5)
    for page in world.pages.pages:
        page.set_slot(0, 3)
    world.run()
    assert world.pages.pages[0].resume == (Resume.MEMORY, 3)
    assert any("could not be verified" in line and "the older step 3" in line for line in world.said())
    assert [line for line in world.said() if "saver died" in line and "trying that again" in line] == [
        "the saver died (exit status -9) while verifying checkpoints: trying that again"
    ] * 4
