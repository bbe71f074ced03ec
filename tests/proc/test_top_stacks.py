"""The key `s` of `ftctl top`: stacks of a rank that answers, and what there is of one that does not."""

from __future__ import annotations

import os
import signal

import pytest
from tests.support.ctl import start
from tests.support.harness import JOBS, FtJob
from tests.support.terminals import Terminal
from tests.support.top import watched
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long

pytest.importorskip("textual", reason="Textual is not installed (pip install 'ftlaunch[top]')")


def assert_shows(top: Terminal, *texts: str) -> str:
    """Wait until the screen shows all these texts, wherever its lines are wrapped; its words then."""
    try:
        wait_for(lambda: top.read() and all(text in words(top) for text in texts), f"{texts}")
    except AssertionError as vain:
        raise AssertionError(f"{vain}:\n{top.text}") from None
    return words(top)


def words(top: Terminal) -> str:
    return " ".join(top.text.split())


def test_a_healthy_rank_shows_its_stacks_and_trains_on(job: FtJob) -> None:
    """In a process with torch: its worker server answers."""
    pytest.importorskip("torch", reason="torch is not installed (pip install 'ftlaunch[torch]')")
    job.start("--max-restarts", "0", args=("--out", str(job.out), "--steps", "1000000", "--step-time", "0.05"))
    job.wait_step(3)
    with watched(job) as top:
        top.wait_for("2 ranks: 2 train")
        top.type("s")
        assert_shows(top, "main thread", "tiny.py")
        top.type("s")
        assert_shows(top, "main thread", "tiny.py")
        top.type("\x1b")
        top.wait_for("2 ranks: 2 train")
    reached = job.wait_step(4)["ranks"][1]["step"]
    job.wait_step(reached + 2)
    assert not job.events("incident")


def test_a_rank_without_torch_is_interrupted_only_after_a_question(job: FtJob) -> None:
    """Nobody answers in it: /proc comes first, the signal after a yes. Training goes on."""
    start(job, seconds=0.05)
    job.wait_step(3)
    with watched(job) as top:
        top.wait_for("2 ranks: 2 train")
        top.type("s")
        assert_shows(top, "cannot show the stacks of rank 0: it has no worker server, which torch brings",
              f"/proc shows of process {job.pids()[0]}:", "main thread (", "you are asked before")  # fmt: skip
        top.type("s")
        assert_shows(top, "Interrupt rank 0?")
        top.type("n")
        assert_shows(top, "cannot show the stacks of rank 0")
        top.type("s")
        assert_shows(top, "Interrupt rank 0?")
        top.type("y")
        assert_shows(top, "it was interrupted, and wrote:", "main thread, at beats.py:")
        top.type("\x1b")
        top.wait_for("2 ranks: 2 train")
    reached = job.wait_step(4)["ranks"][0]["step"]
    job.wait_step(reached + 5)
    assert not job.events("incident")


@pytest.mark.slow
def test_a_stopped_rank_is_said_to_be_stopped_and_stays_so(job: FtJob) -> None:
    """At once, not after the five seconds that its worker server has; and no signal continues it."""
    start(job, seconds=0.05)
    job.wait_step(3)
    pid = job.pids()[1]
    with watched(job) as top:
        top.wait_for("2 ranks: 2 train")
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_for(lambda: top.read() and ">     1 " in top.text and "no beat" in top.text, "the rank at the top")
            top.type("s")
            assert_shows(top, f"stacks of rank 1: it is stopped, and answers nothing until `kill -CONT {pid}`",
                  "main thread (python", "is stopped")  # fmt: skip
            top.type("s")
            assert_shows(top, "it is stopped, and answers nothing")
            assert "Interrupt" not in top.text
            assert state(pid) == "T"
        finally:
            os.kill(pid, signal.SIGCONT)


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


@pytest.mark.slow
def test_a_rank_that_holds_the_interpreters_lock_is_told_of_in_whole_sentences(job: FtJob) -> None:
    """Its worker server takes the question, and nothing comes: what is said then is wrapped, and not cut."""
    pytest.importorskip("torch", reason="torch is not installed (pip install 'ftlaunch[torch]')")
    job.start(script=JOBS / "hangs.py", args=("gil", "0", "3"), ranks=1)  # a hang is seen after minutes only
    wait_for((job.home / "fired").exists, "the lock to be held")
    with watched(job) as top:
        top.wait_for("no beat")
        top.type("s")
        top.wait_for("asking rank 0 ...")
        assert_shows(top, "dump_traceback not answered within 5.0 s: no other thread got the interpreter's lock",
              "you are asked before", "main thread (")  # fmt: skip
        top.type("s")
        assert_shows(top, "Interrupt rank 0?")
        top.type("y")
        assert_shows(top, "it was interrupted, and wrote:", "main thread, at hangs.py:", "hold_the_gil")
