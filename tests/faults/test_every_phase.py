"""A rank dies in any phase of its life, the warm parent too, or before it: the end is that of an undisturbed run.

Tried: it fails where a slot's step is written before its bytes, where random numbers are not restored, where the sweep
after an attempt takes the saver along, and where the end of the warm parent, or of an order it held, is not noticed.
"""

from __future__ import annotations

import contextlib
import os
import signal

import psutil
import pytest
from tests.support.descriptors import descriptors
from tests.support.harness import JOBS, FtJob
from tests.support.waiting import wait_for

SCRIPT = JOBS / "phases.py"
SAVED = 6
OPTIONS = (
    "--storage-interval", str(SAVED), "--storage-bandwidth", "8kB/s",  # then a save takes seconds
    "--verify-resume", "off",  # the steps are counted
)  # fmt: skip
PHASES = {  # where the next attempt begins: from what, and at which step
    "import": (None, 0),
    "init": (None, 0),
    "restore": (None, 0),
    "step 0": ("memory", 0),
    "snapshot 4": ("memory", 3),
    f"checkpoint {SAVED}": ("memory", SAVED),
    "teardown": ("memory", 10),
}

BEFORE_RESUME = ("import", "init", "restore")


def start(job: FtJob, how: str, phase: str, end: str, *options: str) -> None:
    job.start(how, *OPTIONS, *options, script=SCRIPT, args=(str(job.out), phase, end))


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


def assert_as_if_nothing_had_been(job: FtJob, calm: FtJob, *phases: str) -> None:
    """After deaths in these phases, one an attempt."""
    assert job.wait() == 0, job.stderr
    assert job.fired() == [f"{phase} 1" for phase in phases]
    incidents = [(i["kind"], i["rank"], i["attempt"]) for i in job.events("incident")]
    assert incidents == [("killed", 1, attempt) for attempt in range(len(phases))], job.journal_text
    resumed = [event for event in job.events("resumed") if event["attempt"] > 0]
    # an attempt that dies before all its ranks have their state does not resume
    after = [before for before, own in zip(phases, (*phases[1:], ""), strict=True) if own not in BEFORE_RESUME]
    assert [(event["source"], event["step"]) for event in resumed] == [PHASES[phase] for phase in after]
    assert {event["steps_lost"] for event in resumed} <= {0, None}
    assert [job.losses(rank) for rank in range(2)] == [calm.losses(rank) for rank in range(2)]
    assert job.final() == calm.final()
    committed = [event["step"] for event in job.events("checkpoint_committed")]
    assert committed[-1] == 10
    assert SAVED in committed or f"checkpoint {SAVED}" not in phases, "the save under way goes on"
    job.assert_clean()


def all_in_one_job(job: FtJob, calm: FtJob, how: str, *phases: str) -> None:
    options = ("--max-restarts", str(len(phases)), "--backoff-first", "0.1s", "--backoff-max", "0.2s")
    start(job, how, "; ".join(phases), "SIGKILL", *options)
    assert_as_if_nothing_had_been(job, calm, *phases)


@pytest.mark.long
def test_a_rank_is_killed_in_one_phase_after_the_other(job: FtJob, calm: FtJob) -> None:
    all_in_one_job(job, calm, "--warm", *PHASES)
    assert "ended" not in [event["state"] for event in job.events("warm_parent")], "all attempts were forked"


@pytest.mark.slow
def test_a_rank_that_was_not_forked_is_killed_in_one_phase_after_the_other(job: FtJob, calm: FtJob) -> None:
    all_in_one_job(job, calm, "--no-warm", "init", "snapshot 4")
    assert not job.events("warm_parent")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["--warm", "--no-warm"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_rank_that_is_killed_goes_on_as_if_nothing_had_been(job: FtJob, calm: FtJob, phase: str, how: str) -> None:
    """In each phase of the very first attempt."""
    start(job, how, phase, "SIGKILL")
    assert_as_if_nothing_had_been(job, calm, phase)


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


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_the_warm_parent_is_killed_and_then_a_rank(job: FtJob, calm: FtJob, phase: str) -> None:
    """The next parent still imports when the rank is killed."""
    start(job, "--warm", phase, "SIGSTOP")
    rank = stopped(job)
    end(warm_parent(job))
    assert job.wait_warm("ended")["status"] == -signal.SIGKILL
    os.kill(rank, signal.SIGKILL)
    assert_as_if_nothing_had_been(job, calm, phase)


@pytest.mark.long
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
    return sum(target.startswith("socket:") for target in descriptors(pid))
