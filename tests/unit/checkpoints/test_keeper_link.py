"""The keeper of a job as its supervisor asks it: a real process, which is stopped or killed over a request."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoints import commit
from tests.support.stores import Machine
from tests.support.waiting import wait_for

from ftlaunch.checkpoints.stores.keeper_link import KeeperLink
from ftlaunch.checkpoints.stores.opening import StoreOpening
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.helper_process import HelperProcesses

PUBLISH = {"do": "publish", "keep": 5, "keep_every": None, "bandwidth": None}
BRING = {"do": "bring_step", "step": 10}


class Asked:
    """A keeper that has opened an empty store, and what was answered and reported."""

    def __init__(self, home: Path, interrupted: int) -> None:
        self.machine = Machine(home, "first")
        script = home / "train.py"
        script.touch()
        flags = {
            "checkpoint_dir": self.machine.address,
            "checkpoint_cache": str(self.machine.directory),
            "job_id": "net",
            "run_dir": str(home / "run"),
        }
        spec = resolve(str(script), [], flags, {})
        self.opening = StoreOpening(spec, HelperProcesses(), interrupted)
        self.opening.open("FT_TEST=keeper_link", [], home / "memory", newer_than=-1, say=lambda line: None)
        self.answers: list[dict[str, Any]] = []
        self.events: list[JobEvent] = []
        self.link = KeeperLink(self.opening, spec.saving, report=self.events.append, overtaken=lambda why: None)

    def ask(self, request: dict[str, Any]) -> None:
        self.link.ask(request, self.answers.append)

    def settle(self) -> None:
        """Take answers until nothing is asked any more."""

        def is_idle() -> bool:
            self.link.receive()
            return not self.link.is_busy

        wait_for(is_idle, "the keeper's answers")


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    read, write = os.pipe()
    made = Asked(tmp_path, read)
    yield made
    made.link.finish(5.0, lambda: False)
    os.close(read)
    os.close(write)


def test_what_a_keeper_was_asked_when_it_died_is_asked_of_the_next_one(asked: Asked) -> None:
    """Taken out (`appendleft`): the request is never answered, and whoever waits for it waits for ever."""
    os.kill(asked.opening.keeper.pid, signal.SIGSTOP)
    commit(asked.machine.root, 10)
    asked.ask(PUBLISH)
    asked.ask(BRING)
    os.kill(asked.opening.keeper.pid, signal.SIGKILL)
    asked.settle()
    assert [answer["did"] for answer in asked.answers] == ["publish", "bring_step"]
    assert [event.name for event in asked.events] == ["keeper_died"]
    assert sorted(asked.machine.index.steps) == [10]


def test_what_a_dead_saver_has_asked_is_forgotten_and_what_the_store_follows_is_not(asked: Asked) -> None:
    """Taken out (`forget_asked`): a commit that waits is made from a directory in which the next saver writes."""
    os.kill(asked.opening.keeper.pid, signal.SIGSTOP)
    commit(asked.machine.root, 10)
    asked.ask(BRING)
    asked.ask({**BRING, "step": 20})
    asked.link.publish(keep=5, keep_every=None, bandwidth=None)
    asked.link.forget_asked()
    os.kill(asked.opening.keeper.pid, signal.SIGCONT)
    asked.settle()
    assert [answer["did"] for answer in asked.answers] == ["bring_step"], "the keeper had it already"
    assert sorted(asked.machine.index.steps) == [10]


@pytest.mark.parametrize("is_killed", [False, True], ids=["the same keeper", "the keeper after it"])
def test_an_upload_that_is_hurried_keeps_to_no_bandwidth_any_more(asked: Asked, *, is_killed: bool) -> None:
    """Taken out (`hurried`): the keeper that follows keeps to one byte a second, while the job waits for its end."""
    commit(asked.machine.root, 10)
    asked.link.publish(keep=5, keep_every=None, bandwidth=1.0)
    asked.link.hurry()
    if is_killed:
        os.kill(asked.opening.keeper.pid, signal.SIGKILL)
    asked.settle()
    assert sorted(asked.machine.index.steps) == [10]


def test_a_last_step_does_not_wait_for_the_bandwidth_of_those_before(asked: Asked) -> None:
    """Taken out (the hurry of `publish`): the job's last step waits for an upload of one byte a second."""
    os.kill(asked.opening.keeper.pid, signal.SIGSTOP)
    commit(asked.machine.root, 10)
    asked.ask(BRING)
    asked.link.publish(keep=5, keep_every=None, bandwidth=1.0)
    commit(asked.machine.root, 20)
    asked.link.publish(keep=5, keep_every=None, bandwidth=None)
    os.kill(asked.opening.keeper.pid, signal.SIGCONT)
    asked.settle()
    assert sorted(asked.machine.index.steps) == [10, 20]
