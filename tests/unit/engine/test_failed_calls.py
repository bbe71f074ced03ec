"""What fails in the supervisor itself: a look costs that look; an error of its own ends the job in good order."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import World
from tests.support.fakes.clock import BEGIN
from tests.support.fakes.ranks import FakeGroup

from ftlaunch.engine.main import exit_code
from ftlaunch.policy.states import JobState
from ftlaunch_contract.protocol import EXIT_BUG, EXIT_DONE


def trains(home: Path) -> World:
    """A job that makes nine steps, and ends well."""
    world = World(home)

    def begin(group: FakeGroup) -> None:
        world.train(group, 9)
        world.clock.at(world.clock() - BEGIN + 10, lambda: world.finish(group))

    world.on_spawn = begin
    return world


def failing(times: int, function: Any, error: Exception) -> Any:
    """The function, whose first calls fail."""
    left = [times]

    def call(*args: Any, **named: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise error
        return function(*args, **named)

    return call


@pytest.mark.parametrize("name", ["notice", "sweep"])
def test_a_look_that_fails_is_missed_and_made_up_for(tmp_path: Path, name: str) -> None:
    """Taken out (no bulkhead): exit code 70."""
    world = trains(tmp_path)
    error = OSError(errno.EMFILE, "Too many open files", "/proc")
    made = world.make_group

    def make(number: int, exited: Any) -> FakeGroup:
        group = made(number, exited)
        setattr(group, name, failing(5, getattr(group, name), error))
        return group

    world.make_group = make
    world.run()
    assert (world.supervisor.state, exit_code(world.supervisor)) == (JobState.DONE, EXIT_DONE)
    told = world.fields_of("call_failed")
    assert [one["count"] for one in told] == [1, 2, 4]
    assert "OSError" in told[0]["error"]
    assert "Traceback" in told[0]["traceback"]
    assert sum("Too many open files" in sentence for sentence in world.said()) == 1, "said once"
    assert world.supervisor.overview().failed_calls == {told[0]["what"]: 5}


def test_what_a_failed_rank_has_left_is_read_again(tmp_path: Path) -> None:
    """Taken out: the job ends with 70, or the cause is judged without the error that the log tells."""
    world = trains(tmp_path)
    made = world.make_group

    def make(number: int, exited: Any) -> FakeGroup:
        group = made(number, exited)
        if number == 0:
            group.failed = failing(3, group.failed, OSError(errno.EIO, "Input/output error"))  # type: ignore[method-assign]
        return group

    world.make_group = make
    world.clock.at(4.5, lambda: world.groups[0].exit(1, 1, "ValueError: no such thing"))
    world.run()
    (incident,) = world.fields_of("incident")
    assert "ValueError: no such thing" in incident["sentence"]
    assert world.supervisor.state is JobState.DONE


def test_what_a_failed_rank_of_a_large_job_has_left_is_waited_for_no_longer(tmp_path: Path) -> None:
    """A poll takes 0.3 s of a processor: the next is many seconds away. Taken out (`poll_in_this_turn`): after 5.5 s.

    Ten polls were allowed, which took 10 s with 128 nodes and 104 s with 2,048 while a disk was silent.
    """
    world = trains(tmp_path)
    made, judged = world.make_group, list[float]()
    used = itertools.count(0.0, 0.3)

    def make(number: int, exited: Any) -> FakeGroup:
        group = made(number, exited)
        read = group.failed

        def failed(*, must_read: bool) -> Any:
            found = read(must_read=must_read)
            if found and must_read:
                raise OSError(errno.ETIMEDOUT, "its file system has not answered")
            if found:
                judged.append(world.clock() - BEGIN)
            return found

        group.failed = failed  # type: ignore[method-assign]
        return group

    world.make_group = make
    world.processor_time = lambda: next(used)
    world.clock.at(4.5, lambda: world.groups[0].exit(1, 1, "ValueError: no such thing"))
    world.run()
    assert len(world.fields_of("incident")) == 1
    assert judged[0] == pytest.approx(5.5, abs=0.25)


def test_what_a_failed_rank_has_left_is_waited_for_in_each_attempt(tmp_path: Path) -> None:
    """Taken out: the second is judged at once, for the first one's second is over."""
    world = trains(tmp_path)
    asked = list[bool]()

    def refuse(*, must_read: bool) -> Any:
        asked.append(must_read)
        raise OSError(errno.ETIMEDOUT, "its file system has not answered")

    first, second = world.make_group(0, lambda rank, code: None), world.make_group(1, lambda rank, code: None)
    first.failed = second.failed = refuse  # type: ignore[method-assign]
    for group, now in [(first, 100.0), (first, 100.9), (first, 101.1), (second, 200.0), (second, 201.1)]:
        world.clock.now = now
        world.supervisor.incidents.read_failed(group)
    assert asked == [True, True, False, True, False]


@pytest.mark.parametrize("state", ["running", "clearing"])
def test_an_error_of_its_own_ends_the_job_in_good_order(tmp_path: Path, state: str) -> None:
    """Taken out (the loop lets it through): no `job_failed`, ranks left, the newest step only in memory."""
    world = trains(tmp_path)
    for page in world.pages.pages:
        page.set_slot(0, 3)
    if state == "clearing":
        world.clock.at(4.4, lambda: world.groups[0].exit(1, 1, "ValueError: no"))

    def fail_in_state() -> None:
        if world.supervisor.state.value == state:
            raise KeyError("an error of ftlaunch's own")
        world.loop.call_at(world.clock() + 0.01, "fault", fail_in_state)

    world.clock.at(4.0, lambda: world.loop.call_at(world.clock(), "fault", fail_in_state))
    world.run()
    assert world.supervisor.state is JobState.FAILED
    assert exit_code(world.supervisor) == EXIT_BUG
    saves = [request["step"] for request in world.savers[0].asked if request["do"] == "save"]
    assert saves == [3], "its newest step in memory is on storage"
    assert not world.groups[-1].living
    (told,) = world.fields_of("internal_error")
    assert "an error of ftlaunch's own" in told["error"]
    assert "Traceback" in (world.spec.run_dir / "bug.txt").read_text()
    ended = world.supervisor.ended(EXIT_BUG)
    assert ended.name == "job_failed"
    assert ended.fields()["code"] == EXIT_BUG


def test_a_second_error_of_its_own_is_let_through(tmp_path: Path) -> None:
    world = trains(tmp_path)

    def fail() -> None:
        world.supervisor.internal_error = KeyError("the first")
        raise KeyError("the second")

    world.clock.at(4.0, lambda: world.loop.call_at(world.clock(), "fault", fail))
    with pytest.raises(KeyError, match="the second"):
        world.run()
