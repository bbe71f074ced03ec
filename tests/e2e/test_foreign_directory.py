"""A checkpoint directory to which another program saves: a job does not begin there, and changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.support.checkpoints import content_of, mindspore
from tests.support.harness import TINY, FtJob

from ftlaunch_contract.checkpoint import layout

WORDS = "belongs to another program (MindSpore Transformers' Checkpoint 2.0) (and 1 more), and checkpoints of this job"


@pytest.mark.long
@pytest.mark.parametrize("fresh", [False, True], ids=["", "fresh"])
def test_a_supervised_job(fresh: bool, job: FtJob) -> None:
    theirs = job.home / "theirs"
    mindspore(theirs, 1)
    newest = mindspore(theirs, 2)
    before = content_of(theirs)
    job.start("--checkpoint-dir", str(theirs), *(["--fresh"] if fresh else []), ranks=1)
    assert job.wait() == 2, job.stderr
    assert f"cannot start: {newest} {WORDS} would meet it; nothing was changed; give this job another" in job.stderr
    assert content_of(theirs) == before
    job.assert_clean()


@pytest.mark.long
def test_a_job_without_a_supervisor(job: FtJob) -> None:
    theirs = job.home / "theirs"
    mindspore(theirs, 1)
    newest = mindspore(theirs, 2)
    before = content_of(theirs)
    words = [sys.executable, str(TINY), "--out", str(job.out), "--steps", "3"]
    job.out.mkdir(exist_ok=True)
    environ = {**os.environ, "FTLAUNCH_CHECKPOINT_DIR": str(theirs), "FT_TEST": job.job_id}
    done = subprocess.run(words, env=environ, cwd=job.home, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"cannot attach: {newest} {WORDS} would meet it; nothing was changed" in done.stderr
    assert content_of(theirs) == before


@pytest.mark.slow
def test_what_comes_while_a_job_runs_stays(job: FtJob) -> None:
    """The save of its step fails with a sentence, the job goes on, and the tracker file stays theirs."""
    theirs = job.run_dir / "checkpoints"
    job.start("--storage-interval", "5", args=("--out", str(job.out), "--steps", "40", "--step-time", "0.2"), ranks=1)
    job.wait_step(2)
    place = mindspore(theirs, 20)
    before = content_of(place)
    assert job.wait() == 0, job.stderr
    assert [event["step"] for event in job.events("checkpoint_failed")] == [20], "the fault did not fire"
    assert f"cannot save step 20 to {theirs}: {place} belongs to another program" in job.stderr
    assert content_of(place) == before
    assert (theirs / layout.TRACKER).read_text() == "20"
    assert job.events("checkpoint_committed")[-1]["step"] == 40
    job.assert_clean()
