"""A real job that lost a rank ends with its page; one that cannot be written costs a sentence and nothing else."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import pytest
from tests.support.ctl import BEATS
from tests.support.harness import FtJob

PAGE = ("--report-page",)


def shown(job: FtJob) -> dict[str, Any]:
    text = (job.run_dir / "report.html").read_text()
    [told] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(told)


@pytest.mark.long
def test_a_job_with_a_killed_rank_ends_with_its_page(job: FtJob) -> None:
    job.start(*PAGE, args=("--out", str(job.out), "--step-time", "0.1"), env={"FAULT": "sigkill 1 10"})
    assert job.wait() == 0, job.stderr
    assert job.fired() == ["sigkill 1 0"]
    assert job.stderr.splitlines()[-1] == f"ftlaunch: the report for a browser is {job.run_dir}/report.html"
    data = shown(job)
    assert data["job"]["state"] == "finished"
    [incident] = data["incidents"]
    assert (incident["rank"], incident["verdict"], incident["steps_lost"]) == (1, "restart", 0)
    assert len(data["attempts"]) == 2
    assert data["notes"] == []
    took = data["steps"]["step_seconds"]["lines"]
    assert list(took) == ["rank 0", "rank 1"]
    assert [at for at, *_ in took["rank 0"]] == sorted(at for at, *_ in took["rank 0"])
    job.assert_clean()


def test_a_job_that_fails_ends_with_its_page(job: FtJob) -> None:
    job.start(*PAGE, "--max-restarts", "0", script=BEATS, args=("500", "0.01"), env={"FAULT": "1 5"})
    assert job.wait() != 0
    assert job.stderr.splitlines()[-1] == f"ftlaunch: the report for a browser is {job.run_dir}/report.html"
    data = shown(job)
    assert data["job"]["state"] == "failed"
    [incident] = data["incidents"]
    assert (incident["rank"], incident["kind"], incident["verdict"]) == (1, "killed", "give up")
    assert data["job"]["ending"].startswith("failed (exit code ")
    job.assert_clean()


@pytest.mark.slow
def test_the_page_of_a_run_before_is_put_aside_when_the_job_goes_on(job: FtJob) -> None:
    """Taken out: `report.html` said "stopped" of a job that trained. Removed instead: a killed run left no page."""
    page, aside = job.run_dir / "report.html", job.run_dir / "report.before.html"
    job.start(*PAGE, script=BEATS, args=("100000", "0.01"))
    job.wait_event("resumed")
    job.supervisor.send_signal(signal.SIGTERM)
    job.wait()
    assert shown(job)["job"]["state"] == "stopped"
    stopped = page.read_bytes()

    job.start(*PAGE, script=BEATS, args=("100000", "0.01"))
    job.wait_event("resumed", 2)
    assert not page.exists()
    job.supervisor.kill()  # at once: no page is written at its end
    job.supervisor.wait()
    assert aside.read_bytes() == stopped

    job.start(*PAGE, script=BEATS, args=("5", "0.01"))
    assert job.wait() == 0, job.stderr
    assert (shown(job)["job"]["state"], shown(job)["job"]["runs"]) == ("finished", 3)
    assert not aside.exists()


def test_a_page_that_cannot_be_written_is_a_sentence(job: FtJob) -> None:
    (job.run_dir / "report.html").mkdir(parents=True)
    job.start(*PAGE, script=BEATS, args=("5", "0.01"))
    assert job.wait() == 0, job.stderr
    last = job.stderr.splitlines()[-1]
    assert last.startswith(f"ftlaunch: cannot write {job.run_dir}/report.html: ")
    assert last.endswith(f"; `ftctl report {job.run_dir} --html` tries again")
    assert [path.name for path in job.run_dir.glob(".report*")] == []
    job.assert_clean()


def test_it_can_be_turned_off(job: FtJob) -> None:
    job.start("--no-report-page", script=BEATS, args=("5", "0.01"))
    assert job.wait() == 0, job.stderr
    assert not (job.run_dir / "report.html").exists()
    assert "report for a browser" not in job.stderr
