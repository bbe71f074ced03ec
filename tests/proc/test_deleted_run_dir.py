"""A running job whose run dir was deleted is not lost to its user."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.support.ctl import ftctl, start
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

from ftlaunch.history.job_index import known_jobs


def delete(run_dir: Path) -> None:
    """Delete the run dir of a running job, with what the job writes there meanwhile."""

    def is_gone() -> bool:
        shutil.rmtree(run_dir, ignore_errors=True)
        return not run_dir.exists()

    wait_for(is_gone, "the end of the run dir")


def test_it_is_listed_told_of_and_stopped(job: FtJob) -> None:
    """Before, its row and its note were dropped, and neither `status` nor `stop` found it."""
    start(job)
    job.wait_step(3)
    wait_for(lambda: job.job_id in {known.job_id for known in known_jobs()}, "its note")
    delete(job.run_dir)
    for _ in range(2):  # the first look must not forget it
        rows = json.loads(ftctl("jobs", "--running", "--json", cwd=job.home)[1])
        row = next(row for row in rows if row["job_id"] == job.job_id)
        assert (row["state"], row["problem"]) == ("running", "its run dir was deleted")
        assert row["step"] >= 3
    assert job.job_id in {known.job_id for known in known_jobs()}
    for name in (job.job_id, str(job.run_dir)):
        code, out, _ = ftctl("status", name, cwd=job.home)
        assert code == 0
        assert out.startswith(f"job {job.job_id}: running")
    code, _, err = ftctl("logs", job.job_id, cwd=job.home)
    assert code == 2
    assert "its run dir was deleted" in err
    assert f"`ftctl stop {job.job_id}`" in err
    code, out, err = ftctl("stop", job.job_id, cwd=job.home)
    assert (code, err) == (0, "")
    assert out.endswith(f"job {job.job_id} has ended; how is not known here, as its run dir was deleted\n")
    job.wait()
    ftctl("jobs", cwd=job.home)
    assert job.job_id not in {known.job_id for known in known_jobs()}


def test_another_run_dir_in_its_place_does_not_hide_it(job: FtJob) -> None:
    start(job)
    job.wait_step(3)
    delete(job.run_dir)
    job.run_dir.mkdir()
    rows = json.loads(ftctl("jobs", "--json", cwd=job.home)[1])
    row = next(row for row in rows if row["job_id"] == job.job_id)
    assert (row["running"], row["problem"]) == (True, "its run dir was deleted")
    assert ftctl("stop", job.memory, cwd=job.home)[0] == 0
