"""`ftctl jobs` and `ftctl attach` with jobs that run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.ctl import BEATS, ftctl, start
from tests.support.harness import FtJob
from tests.support.leftovers import carriers
from tests.support.waiting import wait_for

from ftlaunch.history.job_index import known_jobs

SCRIPT = """
import pathlib, sys, time
print("it begins \\x1b[31m", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
print("it ends", flush=True)
sys.exit(int(sys.argv[2]))
"""


def noted(job: FtJob) -> bool:
    return job.job_id in {known.job_id for known in known_jobs()}


def detached(job: FtJob, *words: str) -> Path:
    """A job that prints, and ends once the file is there that is returned."""
    script, go = job.home / "talks.py", job.home / "go"
    script.write_text(SCRIPT)
    job.start("--detach", "--max-restarts", "0", script=script, args=(str(go), *words), ranks=1)
    assert job.wait() == 0, job.stderr
    return go


def attach(job: FtJob, out: Path, **popen: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ftlaunch.cli.ctl", "attach", job.job_id]
    with out.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, cwd="/", **popen)  # type: ignore[call-overload]


def test_a_job_is_listed_while_it_runs_and_after_it(job: FtJob) -> None:
    start(job)
    job.wait_step(3)
    wait_for(lambda: noted(job), "its note")
    rows = json.loads(ftctl("jobs", "--running", "--json", cwd=job.home)[1])
    row = next(row for row in rows if row["job_id"] == job.job_id)
    assert (row["state"], row["running"], row["run_dir"]) == ("running", True, str(job.run_dir))
    assert row["step"] >= 3
    assert ftctl("stop", job.job_id, cwd=Path("/"))[0] == 0
    rows = json.loads(ftctl("jobs", "--json", cwd=job.home)[1])
    row = next(row for row in rows if row["job_id"] == job.job_id)
    assert (row["state"], row["running"]) == ("stopped", False)


def test_a_home_that_takes_no_note_costs_no_job_anything(job: FtJob) -> None:
    """A job whose home cannot take its note runs undisturbed, and is listed while it runs."""
    job.start(script=BEATS, args=("1000000", "0.005"), env={"XDG_STATE_HOME": "/proc/no", "HOME": "/proc/no"})
    job.wait_step(3)
    rows = json.loads(ftctl("jobs", "--running", "--json", cwd=job.home)[1])
    assert job.job_id in {row["job_id"] for row in rows}
    assert ftctl("stop", str(job.run_dir), cwd=job.home)[0] == 0
    assert not noted(job)


def test_attach_shows_the_terminal_and_ends_with_the_jobs_code(job: FtJob) -> None:
    go, out = detached(job, "7"), job.home / "attached"
    attached = attach(job, out)
    try:
        wait_for(lambda: "it begins" in out.read_text(), "what was said before")
        go.touch()
        assert attached.wait(60) == 1
    finally:
        attached.kill()
        attached.wait()
    assert "[0] it begins \\x1b[31m\n[0] it ends\n" in out.read_text()
    assert "ftlaunch: the job has failed." in out.read_text()


@pytest.mark.long
def test_ctrl_c_leaves_the_job_alone(job: FtJob) -> None:
    go, out = detached(job, "0"), job.home / "attached"
    attached = attach(job, out)
    wait_for(lambda: "it begins" in out.read_text(), "what was said before")
    attached.send_signal(signal.SIGINT)
    assert attached.wait(60) == 130
    assert f"ftctl: job {job.job_id} goes on: `ftctl attach {job.job_id}` comes back to it" in out.read_text()
    os.kill(job.events("job_started")[0]["pid"], 0)
    go.touch()
    wait_for(lambda: job.events("job_finished") and not carriers(job.tag), "its end")
    code, said, err = ftctl("attach", str(job.run_dir), cwd=job.home)
    assert (code, said) == (1, "")
    more = f"what it said is in {job.run_dir / 'terminal.log'}; `ftctl report {job.job_id}` tells what happened"
    assert f"it is not running: done (exit code 0); {more}\n" in err


@pytest.mark.long
def test_a_job_on_a_terminal_says_where_that_is(job: FtJob) -> None:
    start(job)
    job.wait_step(1)
    (job.run_dir / "terminal.log").write_text("of an earlier run\n")
    code, out, err = ftctl("attach", job.job_id, cwd=job.home)
    assert (code, out) == (1, "")
    assert f"its terminal is where it was started (pid {job.supervisor.pid}); `ftctl logs -f {job.job_id}`" in err
    assert ftctl("stop", job.job_id, cwd=job.home)[0] == 0
