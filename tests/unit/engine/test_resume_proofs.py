"""What the supervisor does about the steps that resumed ranks make again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.engine import World
from tests.support.fakes.clock import BEGIN
from tests.support.fakes.ranks import FakeGroup

from ftlaunch.memory.pages import Pages
from ftlaunch.policy.states import JobState
from ftlaunch_contract.pages.fingerprint_ring import FingerprintRing, ring_path
from ftlaunch_contract.pages.proof_record import Proof, ProofPart, ProofVerdict, write_proof
from ftlaunch_contract.protocol import Resume, Why, sampled_names_path

V = ProofVerdict
SAME = Proof(V.SAME, step=8, steps=3, ahead=3)
OTHER_VALUE = Proof(V.DIFFERENT, step=7, steps=2, ahead=3, what=ProofPart.PARAMETER, before=1.0, now=2.0, parameter=1)


def killed_once(home: Path, prove: Callable[[FakeGroup], None], **asked: str) -> World:
    """Return a job of two ranks that is killed at step 8 and resumes at step 5; `prove` writes records after it."""
    world = World(home, **asked)

    def begin(group: FakeGroup) -> None:
        now = world.clock() - BEGIN
        if group.attempt == 0:
            world.train(group, 8)
            world.clock.at(now + 8.5, lambda: group.exit(1, -9))
            return
        world.train(group, 10, first=6)
        for number, rank in group.ranks.items():
            rank.page.set_resumed(Resume.MEMORY, 5)  # type: ignore[union-attr]
            assert number in (0, 1)
        world.clock.at(now + 3.5, lambda: prove(group))
        world.clock.at(now + 20, lambda: world.finish(group))

    world.on_spawn = begin
    world.run()
    return world


def record(group: FakeGroup, rank: int, proof: Proof) -> None:
    """Write what a rank has found."""
    page = group.ranks[rank].page
    assert page is not None
    write_proof(page, proof)


def test_steps_made_again_that_were_the_same_are_told(tmp_path: Path) -> None:
    def prove(group: FakeGroup) -> None:
        record(group, 0, SAME)
        record(group, 1, SAME)

    world = killed_once(tmp_path, prove)
    (verified,) = world.fields_of("resume_verified")
    assert (verified["step"], verified["steps"], verified["answer"]) == (5, 3, "same")
    assert "resumed at step 5: verified; the 3 steps made again were the same" in world.said()
    assert world.fields_of("resume_differs") == world.fields_of("resume_unverified") == []
    assert world.supervisor.overview().as_dict()["resume"] == verified["sentence"]


def test_a_resume_that_nothing_has_proved_is_told_as_such(tmp_path: Path) -> None:
    def prove(group: FakeGroup) -> None:
        record(group, 0, Proof(V.UNVERIFIED))
        record(group, 1, Proof(V.UNVERIFIED))

    world = killed_once(tmp_path, prove)
    (told,) = world.fields_of("resume_unverified")
    assert told["step"] == 5
    assert told["sentence"] in world.said()


def test_rounding_is_no_difference(tmp_path: Path) -> None:
    def prove(group: FakeGroup) -> None:
        record(group, 0, Proof(V.ROUNDED, 6, 1, 3, ProofPart.LOSS, 1.0, 1.5))
        record(group, 1, SAME)

    world = killed_once(tmp_path, prove, on_difference="stop")
    (told,) = world.fields_of("resume_verified")
    assert (told["answer"], told["rounded_at"], told["rank"], told["what"]) == ("rounded", 6, 0, "loss")
    assert world.supervisor.state is JobState.DONE


def test_a_difference_names_its_parameter_and_the_job_goes_on(tmp_path: Path) -> None:
    def prove(group: FakeGroup) -> None:
        names = sampled_names_path(group.world.pages.directory, 1)
        names.write_text(json.dumps(["fc1.weight", "fc2.weight"]))
        record(group, 1, OTHER_VALUE)

    world = killed_once(tmp_path, prove)
    (told,) = world.fields_of("resume_differs")
    assert (told["resumed"], told["step"], told["rank"], told["what"]) == (5, 7, 1, "parameter")
    assert (told["name"], told["before"], told["now"], told["act"]) == ("fc2.weight", 1.0, 2.0, "continue")
    assert told["sentence"] + "; --on-difference stop ends such a job" in world.said()
    assert world.supervisor.state is JobState.DONE
    assert len(world.groups) == 2


def test_a_difference_ends_the_job_where_that_is_asked_for(tmp_path: Path) -> None:
    world = killed_once(tmp_path, lambda group: record(group, 1, OTHER_VALUE), on_difference="stop")
    (told,), incident = world.fields_of("resume_differs"), world.fields_of("incident")[-1]
    assert told["act"] == "stop"
    assert told["name"] is None, "rank 1 has left no list of names"
    assert (incident["kind"], incident["rank"], incident["verdict"]) == ("resume-differs", 1, "give up")
    assert "on_difference: stop" in incident["sentence"]
    assert world.supervisor.state is JobState.FAILED
    assert len(world.groups) == 2, "there is no third attempt"


@pytest.mark.parametrize("verdict", [V.AHEAD, V.SAME])
def test_what_was_compared_is_told_where_the_attempt_ends_before(tmp_path: Path, verdict: ProofVerdict) -> None:
    def prove(group: FakeGroup) -> None:
        record(group, 0, Proof(V.AHEAD, 7, 2, 3))
        record(group, 1, Proof(verdict, 8, 3, 3))

    world = killed_once(tmp_path, prove)
    (told,) = world.fields_of("resume_verified")
    assert told["steps"] == 2


@pytest.mark.parametrize(("mode", "begun_at"), [("on", 7), ("auto", 7), ("off", 8)])
def test_a_kill_behind_a_snapshot_goes_one_snapshot_further_back(tmp_path: Path, mode: str, begun_at: int) -> None:
    """The ranks have left snapshots of steps 7 and 8, and fingerprints up to step 8."""
    world = World(tmp_path, verify_resume=mode)

    def leave(group: FakeGroup) -> None:
        for rank in group.ranks:
            page = world.pages[rank]
            page.set_slot(0, 7)
            page.set_slot(1, 8)
            page.end_step(8, 10_000_000, 1)
            ring = FingerprintRing(ring_path(world.pages.directory, rank), sample_bytes=0, names_checksum=1)
            for step in (6, 7, 8):
                ring.begin(step)
                ring.note_loss(step, 0.5)
                ring.finish(step, random=1, rates=1, has_samples=False)
            ring.begin(9)
            ring.close()
        group.exit(1, -9)

    def begin(group: FakeGroup) -> None:
        if group.attempt == 0:
            world.train(group, 8)
            world.clock.at(8.5, lambda: leave(group))
            return
        asked.extend(page.resume for page in world.pages.pages)
        world.train(group, 2, first=9)
        world.clock.at(world.clock() - BEGIN + 5, lambda: world.finish(group))

    asked: list[tuple[Resume, int]] = []
    world.on_spawn = begin
    world.run()
    assert asked == [(Resume.MEMORY, begun_at)] * 2


def test_what_is_held_for_the_saver_is_not_gone_behind(tmp_path: Path) -> None:
    """Taken out: the end of a training was saved by the attempt before, and the next one waited for its own in vain."""
    pages = Pages(tmp_path, 2)
    assert pages.newest_held() == -1
    pages[1].hold_for_saver(8, Why.END)
    assert pages.newest_held() == 8
    pages.reading(9)
    assert pages.newest_held() == 9
