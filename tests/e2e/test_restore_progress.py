"""How far a rank's restoring and loading is: lines in its log."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.harness import TINY, FtJob

pytestmark = pytest.mark.long

# tiny.py, whose hooks say from the first moment on how far they are
AT_ONCE = f"""
import runpy, sys
from ftlaunch_contract import progress
sys.path.insert(0, {str(TINY.parent)!r})
progress.FIRST_SECONDS = progress.INTERVAL_SECONDS = 0.0
runpy.run_path({str(TINY)!r}, run_name="__main__")
"""


@pytest.fixture
def script(job: FtJob) -> Path:
    path = job.home / "at_once.py"
    path.write_text(AT_ONCE)
    return path


@pytest.mark.slow
def test_restoring_and_resharding_say_how_far_they_are(job: FtJob, script: Path) -> None:
    """From memory after a kill; then two ranks' checkpoint is read by one."""
    words = ("--out", str(job.out), "--steps", "12")
    job.start("--no-warm", script=script, args=words, env={"FAULT": "sigkill 1 5"})
    assert job.wait() == 0, job.stderr
    assert job.events("resumed")[1]["source"] == "memory"
    for rank in (0, 1):
        assert "restoring: " in job.log(1, rank)
        assert " KiB in " in job.log(1, rank)
    job.start("--no-warm", script=script, args=(*words[:3], "14"), ranks=1)
    assert job.wait() == 0, job.stderr
    resumed = job.events("resumed")[-1]
    assert (resumed["source"], resumed["step"]) == ("storage", 12)
    assert "restoring: " in job.log(job.events("attempt_started")[-1]["attempt"], 0)


def test_loading_of_weights_says_how_far_it_is(job: FtJob, script: Path, tmp_path: Path) -> None:
    job.start("--no-warm", script=script, args=("--out", str(job.out), "--steps", "4"))
    assert job.wait() == 0, job.stderr
    other = FtJob(tmp_path / "other")
    other.home.mkdir()
    try:
        load = ("--load-checkpoint", str(job.run_dir / "checkpoints"), "--no-resume-training")
        other.start("--no-warm", *load, script=script, args=("--out", str(other.out), "--steps", "2"))
        assert other.wait() == 0, other.stderr
        assert "loading: " in other.log(0, 0)
    finally:
        other.dispose()
