"""The kernel rings when a process begins to end, and says by what."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from select import select

import pytest
from tests.support.waiting import DEADLINE

from ftlaunch.ranks.exit_watch import ExitWatch
from ftlaunch.system.processes import Leader
from ftlaunch_contract.pages.page import Page, create_page

HANGS_UP = """
import sys, pathlib, signal
from ftlaunch_contract.pages import exit_futex
exit_futex.arm(pathlib.Path(sys.argv[1]))
print("hung up", flush=True)
if sys.argv[2] == "pause":
    signal.pause()
"""


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[list[Path]]:
    """More than one call of the kernel takes."""
    paths = [tmp_path / f"page_{number}" for number in range(130)]
    for path in paths:
        create_page(path)
    yield paths


def ringer(page: Path, then: str = "pause") -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HANGS_UP, str(page), then], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "hung up\n"
    return process


def test_of_many_ranks_each_is_heard(pages: list[Path]) -> None:
    watch = ExitWatch(pages)
    for rank in (3, 129):
        with ringer(pages[rank]) as process:
            assert select([watch.fd], [], [], 0)[0] == []
            process.kill()
            assert select([watch.fd], [], [], DEADLINE)[0] == [watch.fd]
            assert watch.read_dying() == [rank]
        watch.forget()


def test_the_next_one_is_heard_after_one_in_the_same_page(pages: list[Path]) -> None:
    watch = ExitWatch(pages[:1])
    for _ in range(3):
        with ringer(pages[0]) as process:
            process.kill()
            assert select([watch.fd], [], [], DEADLINE)[0] == [watch.fd]
            assert watch.read_dying() == [0]
        watch.forget()
        page = Page(pages[0])
        page.begin(0, os.getpid(), 0)
        page.close()


def test_by_which_signal() -> None:
    """Read while the process is a zombie: it is not reaped before."""
    for command, signum in (("kill -SEGV $$", signal.SIGSEGV), ("kill -KILL $$", signal.SIGKILL), ("exit 3", 0)):
        process = subprocess.Popen(["sh", "-c", command])
        leader = Leader(0, process.pid, Path("/dev/null"), "")
        assert select([leader.pidfd], [], [], DEADLINE)[0]
        assert leader.ended_by() == signum
        os.close(leader.pidfd)
        process.wait()


def test_a_living_process_is_ended_by_nothing() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        leader = Leader(0, process.pid, Path("/dev/null"), "")
        assert leader.ended_by() == 0
        process.kill()
        process.wait()
        assert leader.ended_by() == 0, "it is gone"
        os.close(leader.pidfd)
