"""A saver that is stopped is ended, so that another one can take its request."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import wait_for

from ftlaunch.checkpoints.saver_client import SaverLink
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.processes import state_of


@pytest.fixture
def saver() -> Iterator[SaverLink]:
    link = SaverLink(HelperProcesses(), "NOBODY=1", [])
    yield link
    link.close(0.0)


def stop(saver: SaverLink) -> None:
    os.kill(saver.pid, signal.SIGSTOP)
    wait_for(lambda: state_of(saver.pid) == "T", "a stopped saver")


def is_gone(saver: SaverLink) -> bool:
    """Whether its end comes within a second."""
    return bool(select.select([saver.fd], [], [], 1.0)[0]) and saver.answers() is None


def test_a_saver_that_stays_stopped_over_a_request_is_ended(saver: SaverLink, tmp_path: Path) -> None:
    """Taken out: the request is never answered."""
    stop(saver)
    saver.ask({"do": "find", "checkpoint_dir": str(tmp_path)})
    saver.kill_if_stopped(100.0)
    saver.kill_if_stopped(101.9)
    assert state_of(saver.pid) == "T", "somebody may continue it"
    saver.kill_if_stopped(102.1)
    assert is_gone(saver)


def test_a_saver_that_was_continued_in_time_goes_on(saver: SaverLink, tmp_path: Path) -> None:
    stop(saver)
    saver.ask({"do": "find", "checkpoint_dir": str(tmp_path)})
    saver.kill_if_stopped(100.0)
    os.kill(saver.pid, signal.SIGCONT)
    wait_for(lambda: state_of(saver.pid) != "T", "a continued saver")
    saver.kill_if_stopped(102.1)
    assert select.select([saver.fd], [], [], 10.0)[0]
    assert [answer["did"] for answer in saver.answers() or ()] == ["find"]


def test_an_idle_saver_may_be_stopped(saver: SaverLink) -> None:
    stop(saver)
    saver.kill_if_stopped(100.0)
    saver.kill_if_stopped(200.0)
    assert state_of(saver.pid) == "T"
