"""Lightning jobs that are told to stop, freeze, or lose their supervisor."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from tests.support.framework_results import logs
from tests.support.harness import FtJob
from tests.support.leftovers import carriers
from tests.support.lightning_jobs import left, start
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long

Undisturbed = Callable[[str, int], dict[str, object]]


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["job", pytest.param("rank", marks=pytest.mark.slow)])
def test_told_to_stop_and_started_again(whom: str, job: FtJob, undisturbed: Undisturbed) -> None:
    """Taken out: without restore_signal_handler() the ranks wait for each other in Lightning's handler."""
    start(job, "slow+noise", ranks=2)
    job.wait_step(4)
    os.kill(job.supervisor.pid if whom == "job" else job.pids()[1], signal.SIGTERM)
    assert job.wait() == 75, job.stderr + logs(job)
    assert [event["code"] for event in job.events("rank_exited")] == [75, 75], "no rank was killed after the grace"
    start(job, "slow+noise", ranks=2)
    assert job.wait() == 0, job.stderr + logs(job)
    [resumed] = [event for event in job.events("resumed") if event["source"]]
    assert 4 <= resumed["step"] < 18
    assert left(job.out) == undisturbed("slow+noise", 2)
    job.assert_clean()


@pytest.mark.refused("Lightning", "another number of ranks")
@pytest.mark.parametrize(("before", "now"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_another_number_of_ranks_is_refused(before: int, now: int, job: FtJob) -> None:
    start(job, "slow", ranks=before)
    job.wait_step(4)
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.stderr + logs(job)
    start(job, "slow", ranks=now)
    assert job.wait() == 1
    assert f"cannot resume on {now} ranks what {before} have saved" in logs(job)


@pytest.mark.slow
def test_the_supervisor_is_killed(job: FtJob, undisturbed: Undisturbed) -> None:
    start(job, "slow+noise", ranks=2)
    job.wait_step(4)
    job.supervisor.kill()
    job.supervisor.wait()
    wait_for(lambda: not carriers(job.tag), "the end of the ranks")
    start(job, "slow+noise", ranks=2)
    assert job.wait() == 0, job.stderr + logs(job)
    assert [event["source"] for event in job.events("resumed") if event["source"]] == ["memory"]
    assert left(job.out) == undisturbed("slow+noise", 2)
    job.assert_clean()


@pytest.mark.slow
def test_a_frozen_rank(job: FtJob, undisturbed: Undisturbed) -> None:
    start(job, "noise", "--hang-timeout", "4s", "--grace", "1s", ranks=2, faults="step 1 9 freeze")
    assert job.wait() == 0, job.stderr + logs(job)
    assert job.fired() == ["step 1 9 freeze 0"]
    [incident] = job.events("incident")
    assert (incident["kind"], incident["rank"]) == ("hang", 1)
    assert left(job.out) == undisturbed("noise", 2)
    job.assert_clean()
