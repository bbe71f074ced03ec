"""Pythons and kernels that lack pidfd, memfd and futex_waitv: a whole job, killed once, ends bit for bit."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

import pytest
from tests.support.harness import FtJob
from tests.support.refusing import CONTAINER, OLD_KERNEL, lacking_python, refuse, refused, stand_ins, without_flock
from tests.support.waiting import wait_for


def resumed_exactly(job: FtJob, calm: FtJob) -> None:
    (incident,) = job.events("incident")
    assert incident["rank"] == 1
    assert job.fired() == ["sigkill 1 0"]
    assert job.events("resumed")[1]["source"] == "memory"
    assert job.losses() == calm.losses()
    assert job.final() == calm.final()
    job.assert_clean()


@pytest.mark.long
def test_a_python_without_the_names(job: FtJob, calm: FtJob) -> None:
    """Taken out (`os.pidfd_open` in `Leader`): the first rank cannot be started, AttributeError."""
    env = lacking_python(job.home)
    job.start("--warm", env={**env, "FAULT": "sigkill 1 8"})
    assert job.wait() == 0, job.stderr
    assert set((job.home / "lacking").read_text().split()) == {"False"}
    states = [event["state"] for event in job.events("warm_parent")]
    assert "ready" in states, "the fork server makes the system call itself"
    resumed_exactly(job, calm)


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(OLD_KERNEL, id="old kernel", marks=pytest.mark.slow),
        pytest.param(CONTAINER, id="container", marks=pytest.mark.slow),
    ],
)
def test_a_kernel_that_refuses_the_calls(job: FtJob, calm: FtJob, calls: Mapping[int, int]) -> None:
    """Taken out (the thread in `open_end`): the first rank cannot be started, Function not implemented."""
    job.start("--warm", env={"FAULT": "sigkill 1 8"}, preexec_fn=refuse(calls))
    wait_for(lambda: refused(job.supervisor.pid), "the filter")
    assert job.wait() == 0, job.stderr
    assert "pidfd_open(2) is refused here" in job.stderr, "it is said why ranks are not forked"
    resumed_exactly(job, calm)


@pytest.mark.slow
def test_a_stop_and_a_killed_supervisor_without_pidfd(job: FtJob) -> None:
    job.start("--no-warm", args=("--out", str(job.out), "--steps", "60", "--step-time", "0.03"),
              preexec_fn=refuse(OLD_KERNEL))  # fmt: skip
    job.wait_step(5)
    pids = job.pids()
    job.supervisor.kill()
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "the end of the ranks")
    job.start("--no-warm", args=("--out", str(job.out), "--steps", "60", "--step-time", "0.03"),
              preexec_fn=refuse(OLD_KERNEL))  # fmt: skip
    job.wait_event("resumed", 2)
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.stderr
    assert job.events("resumed")[1]["source"] == "memory"
    job.assert_clean()


@pytest.mark.slow
def test_a_run_dir_without_locks(job: FtJob, calm: FtJob) -> None:
    """A second supervisor of another job is refused, a killed one is followed at once, nothing stays in memory.

    Taken out (the stand-in, so that nothing is locked): the second one starts.
    """
    env = without_flock(job.home)
    args = ("--out", str(job.out), "--steps", "30", "--step-time")
    job.start(args=(*args, "0.6"), env=env)
    job.wait_step(3)
    first = job.supervisor
    assert set((job.home / "no_flock").read_text().split()) >= {
        str(job.run_dir / "lock"), str(job.run_dir / "checkpoints" / ".ftlaunch.lock"),
    }, "both locks were refused"  # fmt: skip
    warning = "is on a file system without locks: only your own jobs on this machine are kept out; see to it that no"
    assert job.stderr.count(f"warning: {job.run_dir} {warning}") == 1
    assert len(stand_ins(job.run_dir)) == 2
    job.start("--job-id", f"{job.job_id}-other", args=(*args, "0.01"), env=env)
    assert job.wait() == 2
    assert f"cannot start: {job.run_dir} is in use by a running supervisor (pid {first.pid})" in job.stderr
    assert first.poll() is None
    first.kill()
    first.wait()
    job.start(args=(*args, "0.01"), env=env)
    assert job.wait() == 0, job.stderr
    assert job.events("resumed")[1]["source"] == "memory"
    assert job.losses() == calm.losses()
    assert job.final() == calm.final()
    assert stand_ins(job.run_dir) == []
    job.assert_clean()
