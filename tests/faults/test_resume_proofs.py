"""Resumes of whole jobs prove themselves: the steps made again are compared, and what they show is told."""

from __future__ import annotations

import pytest
from tests.faults.test_resume_proof import start
from tests.support.harness import FtJob

from ftlaunch_contract.checkpoint import layout


@pytest.mark.long
def test_a_kill_behind_a_snapshot_is_proved_by_one_step_made_again(job: FtJob) -> None:
    """Taken out: with `--verify-resume off` the job resumes at step 7, makes no step again, and proves nothing."""
    job.start("--verify-resume", "on", env={"FAULT": "last 1 7"})
    assert job.wait() == 0, job.stderr
    assert job.fired() == ["last 1 0"]
    resumed = job.events("resumed")[-1]
    assert (resumed["source"], resumed["step"], resumed["steps_lost"]) == ("memory", 6, 1)
    (verified,) = job.events("resume_verified")
    assert (verified["step"], verified["steps"], verified["answer"], verified["compared"]) == (6, 1, "same", 2)
    assert "ftlaunch: resumed at step 6: verified; the step made again was the same" in job.stderr
    job.losses()
    job.assert_clean()


@pytest.mark.long
def test_a_resume_without_a_proof_says_so(job: FtJob) -> None:
    job.start("--verify-resume", "off", env={"FAULT": "sigkill 0 7"}, ranks=1)
    assert job.wait() == 0, job.stderr
    assert job.fired() == ["sigkill 0 0"]
    assert job.events("resumed")[-1]["step"] == 7
    (unverified,) = job.events("resume_unverified")
    assert unverified["step"] == 7
    assert "ftlaunch: resumed at step 7: not verified" in job.stderr


@pytest.mark.long
def test_nothing_is_saved_of_a_run_that_ends_over_a_difference(job: FtJob) -> None:
    """Taken out: without `NumericsMonitor.end_inexact` the newest step is saved, and the next run goes on from it."""
    options = ("--on-difference", "stop", "--memory-interval", "5", "--storage-interval", "5")
    start(job, *options, differs="state", kill="0:13:after", committed="1", steps="100000")
    assert job.wait() == 1, job.stderr
    assert (job.out / "killed").exists()
    (differs,), incident = job.events("resume_differs"), job.events("incident")[-1]
    assert (incident["kind"], incident["verdict"], incident["rank"]) == ("resume-differs", "give up", 0)
    assert "not restarting (on_difference: stop)" in job.stderr
    saved = [step for step, _ in layout.list_iterations(job.run_dir / "checkpoints")]
    assert saved, "those of before the kill stay"
    assert max(saved) < differs["step"]
    assert len(job.events("attempt_started")) == 2
