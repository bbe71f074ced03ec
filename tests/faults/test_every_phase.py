"""A rank dies in any phase of its life, the warm parent too, or before it: the end is that of an undisturbed run.

Tried: it fails where a slot's step is written before its bytes, where random numbers are not restored, where the sweep
after an attempt takes the saver along, and where the end of the warm parent, or of an order it held, is not noticed.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import psutil
import pytest
from tests.support.harness import JOBS, FtJob
from tests.support.waiting import wait_for

SCRIPT = JOBS / "phases.py"
SAVED = 6
OPTIONS = ("--storage-interval", str(SAVED), "--storage-bandwidth", "8kB/s")  # then a save takes seconds
PHASES = {  # where the next attempt begins: from what, and at which step
    "import": (None, 0),
    "init": (None, 0),
    "restore": (None, 0),
    "step 0": ("memory", 0),
    "snapshot 4": ("memory", 3),
    f"checkpoint {SAVED}": ("memory", SAVED),
    "teardown": ("memory", 10),
}


def phases(*telling: str) -> list[Any]:
    """All phases; the others than these are for `make sweep`."""
    return [pytest.param(phase, marks=() if phase in telling else pytest.mark.slow) for phase in PHASES]


def start(job: FtJob, how: str, phase: str, end: str) -> None:
    job.start(how, *OPTIONS, script=SCRIPT, args=(str(job.out), phase, end))


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> FtJob:
    """Nothing happens to it."""
    job = FtJob(tmp_path_factory.mktemp("calm"))
    try:
        start(job, "--warm", "none", "SIGKILL")
        assert job.wait() == 0, job.stderr
    finally:
        job.dispose()
    assert len(job.losses()) == 10
    return job


def assert_as_if_nothing_had_been(job: FtJob, calm: FtJob, phase: str) -> None:
    assert job.wait() == 0, job.stderr
    assert job.fired() == [f"{phase} 1"]
    assert [(i["kind"], i["rank"], i["attempt"]) for i in job.events("incident")] == [("killed", 1, 0)], (
        job.journal_text
    )
    resumed = job.events("resumed")[-1]
    assert (resumed["attempt"], resumed["source"], resumed["step"]) == (1, *PHASES[phase])
    assert resumed["steps_lost"] in (0, None)
    assert [job.losses(rank) for rank in range(2)] == [calm.losses(rank) for rank in range(2)]
    assert job.final() == calm.final()
    committed = [event["step"] for event in job.events("checkpoint_committed")]
    assert committed[-1] == 10
    assert SAVED in committed or not phase.startswith("checkpoint"), "the save under way goes on"
    job.assert_clean()


@pytest.mark.parametrize("phase", PHASES)
def test_a_rank_is_killed(job: FtJob, calm: FtJob, phase: str) -> None:
    start(job, "--warm", phase, "SIGKILL")
    assert_as_if_nothing_had_been(job, calm, phase)
    assert "ended" not in [event["state"] for event in job.events("warm_parent")], "both attempts were forked"


@pytest.mark.parametrize("phase", phases("init", "snapshot 4"))
def test_a_rank_that_was_not_forked_is_killed(job: FtJob, calm: FtJob, phase: str) -> None:
    start(job, "--no-warm", phase, "SIGKILL")
    assert_as_if_nothing_had_been(job, calm, phase)
    assert not job.events("warm_parent")


def end(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # the helpers die with the parent
            process.kill()


def warm_parent(job: FtJob) -> list[psutil.Process]:
    """The warm parent and its helpers."""
    (ready,) = job.events("warm_parent")
    parent = psutil.Process(ready["pid"])
    wait_for(lambda: len(parent.children()) == 2, "two helpers")
    return [parent, *parent.children()]


def stopped(job: FtJob) -> int:
    """The pid of rank 1, once it has come to where it is to be killed."""
    victim = psutil.Process(job.wait_event("attempt_started")["pids"][1])
    wait_for(lambda: job.fired() and victim.status() == psutil.STATUS_STOPPED, "rank 1 in the phase")
    return victim.pid


@pytest.mark.parametrize("phase", phases("import", "init", "step 0", f"checkpoint {SAVED}"))
def test_the_warm_parent_is_killed_and_then_a_rank(job: FtJob, calm: FtJob, phase: str) -> None:
    """The next parent still imports when the rank is killed."""
    start(job, "--warm", phase, "SIGSTOP")
    rank = stopped(job)
    end(warm_parent(job))
    assert job.wait_warm("ended")["status"] == -signal.SIGKILL
    os.kill(rank, signal.SIGKILL)
    assert_as_if_nothing_had_been(job, calm, phase)


def test_the_warm_parent_is_killed_while_it_is_to_fork(job: FtJob, calm: FtJob) -> None:
    """Nobody has taken the order yet, and the supervisor waits at the gate."""
    start(job, "--warm", "step 0", "SIGSTOP")
    rank, family = stopped(job), warm_parent(job)
    for process in family:
        process.suspend()
    before = sockets(job.supervisor.pid)
    os.kill(rank, signal.SIGKILL)
    wait_for(lambda: sockets(job.supervisor.pid) == before + 1, "the gate")
    end(family)
    assert job.wait_warm("ended")["status"] == -signal.SIGKILL
    assert_as_if_nothing_had_been(job, calm, "step 0")


def sockets(pid: int) -> int:
    return sum(os.readlink(entry.path).startswith("socket:") for entry in os.scandir(f"/proc/{pid}/fd"))
