"""A checkpoint that somebody asks for: of one of the next steps, also where the next one by itself is far away."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.engine import World
from tests.support.fakes.ranks import FakeGroup

from ftlaunch.policy.states import JobState
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Why
from ftlaunch_contract.saving_request import SavingRequest

FAR, LAST = 1000, 40


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A job of forty steps, a second each, whose next checkpoint is far away. Its ranks hold what they are told to."""
    made = World(tmp_path, storage_interval=str(FAR))
    made.on_spawn = lambda group: made.train(group, LAST)
    for second in range(1, LAST + 1):
        made.clock.at(second + 0.05, lambda: hold(made))
    made.clock.at(LAST + 1, lambda: made.finish(made.group))
    return made


def hold(world: World) -> None:
    """What ranks do at a boundary."""
    for page in world.pages.pages:
        page.set_slot(0, page.step)
        if NONE != page.persist_at <= page.step and page.save_step < page.persist_at:
            page.hold_for_saver(page.step, Why.INTERVAL)


def saves(world: World) -> list[tuple[int, str]]:
    asked = [one for saver in world.savers for one in saver.asked if one["do"] == "save"]
    return [(one["step"], one["why"]) for one in asked if one["why"] != "end"]


def test_it_is_made_at_once_and_the_next_one_by_itself_stays(world: World) -> None:
    announced: list[int] = []
    world.clock.at(10.2, world.supervisor.saving.request)
    world.clock.at(20.0, lambda: announced.append(world.pages[0].persist_at))
    world.run()
    assert saves(world) == [(12, "request")]
    assert announced == [FAR]
    assert world.supervisor.state is JobState.DONE


def test_a_rank_that_asks_is_heard_likewise_and_once(world: World) -> None:
    """`job.save()`. With the interval looked at first it waited for step 1000."""
    world.clock.at(10.2, lambda: setattr(world.pages[1], "want_save", 10))
    world.run()
    assert saves(world) == [(12, "request")]


def test_a_request_outlives_the_attempt_that_was_to_serve_it(world: World) -> None:
    def again(group: FakeGroup) -> None:
        world.train(group, 20, first=12)

    def crash() -> None:
        world.on_spawn = again
        world.group.exit(0)
        world.group.exit(1)

    world.clock.at(10.2, world.supervisor.saving.request)
    world.clock.at(10.8, crash)
    world.run()
    assert len(world.fields_of("incident")) == 1
    assert [why for _, why in saves(world)] == ["request"]


def test_a_page_that_names_a_step_which_no_slot_holds_asks_for_nothing(world: World) -> None:
    """It ended the job with exit code 70: the rank had withdrawn its snapshots, and then said which to save."""

    def lose() -> None:
        for page in world.pages.pages:
            for slot in range(len(page.slot_steps())):
                page.set_slot(slot, NONE)
            page.hold_for_saver(10, Why.INTERVAL)

    world.clock.at(10.2, lose)
    world.clock.at(20.2, world.supervisor.saving.request)
    world.run()
    assert world.supervisor.state is JobState.DONE
    assert saves(world) == [(22, "request")]


def hold_multiples(world: World, every: int) -> None:
    """What ranks do at a boundary whose script asks for every so many steps."""
    for page in world.pages.pages:
        page.set_slot(0, page.step)
        if page.step % every == 0:
            page.hold_for_saver(page.step, Why.INTERVAL)


@pytest.mark.parametrize(("option", "keep"), [({}, 35), ({"keep": "7"}, 7)])
def test_what_the_script_asks_for_takes_the_place_of_defaults(
    option: dict[str, str], keep: int, tmp_path: Path
) -> None:
    """Nothing is announced besides, though the interval that is the default is over."""
    world = World(tmp_path, **option)
    announced: set[int] = set()

    def train(group: FakeGroup) -> None:
        world.train(group, 650)
        for page in world.pages.pages:
            page.ask_saves(0, SavingRequest(steps=300, keep=35))

    world.on_spawn = train
    for second in range(1, 651):
        world.clock.at(second + 0.05, lambda: hold_multiples(world, 300))
        world.clock.at(second + 0.06, lambda: announced.add(world.pages[0].persist_at))
    world.clock.at(651, lambda: world.finish(world.group))
    world.run()
    assert saves(world) == [(300, "interval"), (600, "interval")]
    assert announced == {NONE}
    asked = [one for saver in world.savers for one in saver.asked if one["do"] == "save"]
    assert {one["keep"] for one in asked} == {keep}


def test_what_was_asked_for_holds_until_a_process_of_the_next_attempt_trains(tmp_path: Path) -> None:
    """A stop while ranks start saves what memory holds: with the default of keeping, others would be deleted."""
    world = World(tmp_path)
    kept: list[int] = []

    def again(group: FakeGroup) -> None:
        for page in world.pages.pages:
            page.begin(1, 1, 1)
        kept.append(world.supervisor.saving.keep)
        world.train(group, 20, first=12)

    def crash() -> None:
        world.on_spawn = again
        world.group.exit(0)
        world.group.exit(1)

    def train(group: FakeGroup) -> None:
        world.train(group, 20)
        for page in world.pages.pages:
            page.ask_saves(0, SavingRequest(keep=35))

    world.on_spawn = train
    world.clock.at(10.8, crash)
    world.clock.at(60.0, lambda: kept.append(world.supervisor.saving.keep))
    world.clock.at(61.0, lambda: world.finish(world.group))
    world.run()
    assert len(world.fields_of("incident")) == 1
    assert kept == [35, 5], "a process that has made steps has asked for all that it asks for"
