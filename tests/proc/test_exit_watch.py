"""The kernel rings when a process begins to end, and says by what."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from select import select

import pytest
from tests.support.waiting import DEADLINE

from ftlaunch.engine.workspace import Workspace
from ftlaunch.ranks.exit_watch import Knells
from ftlaunch.reporting.reporter import Reporter
from ftlaunch.reporting.terminal import Terminal
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.processes import Leader
from ftlaunch_contract.pages.page import Page, create_page

HANGS_UP = """
import sys, pathlib, signal
from ftlaunch_contract.pages import exit_futex
exit_futex.hang_up(pathlib.Path(sys.argv[1]))
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
    knells = Knells(pages)
    for rank in (3, 129):
        with ringer(pages[rank]) as process:
            assert select([knells.fd], [], [], 0)[0] == []
            process.kill()
            assert select([knells.fd], [], [], DEADLINE)[0] == [knells.fd]
            assert knells.rung() == [rank]
        knells.forget()


def test_the_next_one_is_heard_after_one_in_the_same_page(pages: list[Path]) -> None:
    knells = Knells(pages[:1])
    for _ in range(3):
        with ringer(pages[0]) as process:
            process.kill()
            assert select([knells.fd], [], [], DEADLINE)[0] == [knells.fd]
            assert knells.rung() == [0]
        knells.forget()
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


def test_what_takes_its_time_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    job_id = f"test-{uuid.uuid4().hex[:12]}"
    spec = resolve("train.py", [], {"job_id": job_id, "run_dir": str(tmp_path / "run")}, {})
    with (tmp_path / "terminal").open("w") as out:
        terminal = Terminal(out, out)
        home = Workspace(spec, terminal.say)
        reporter = Reporter(spec, home, terminal, HelperProcesses())
        now = time.monotonic()
        for later in (0.0, 4.0, 6.0, 7.0, 60.0):
            reporter.notice_dying({1: now}, now + later)
        reporter.notice_dying({}, now + 61)
        home.leave(keep_memory=False)
        terminal.close()
    said = (tmp_path / "terminal").read_text()
    assert said.count("rank 1 died 6 s ago, and the kernel has not taken it apart yet: waiting") == 1
