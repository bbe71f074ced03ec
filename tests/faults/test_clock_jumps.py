"""The wall clock jumps an hour while ranks are being restarted: decisions are made by the monotonic one.

The clock of every process of the job is `time.time`, which a `sitecustomize` on PYTHONPATH shifts by what a file says.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.harness import FtJob

_SITE = """
import os
import time

_true_time = time.time


def shifted() -> float:
    try:
        with open(os.environ["SHIFT"]) as file:
            return _true_time() + float(file.read() or 0)
    except OSError:
        return _true_time()


time.time = shifted
"""


@pytest.mark.slow
@pytest.mark.parametrize("jump", [3600, -3600])
def test_a_clock_that_jumps_an_hour_during_a_restart_costs_nothing(job: FtJob, jump: int) -> None:
    site = job.home / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITE)
    shift = job.home / "shift"
    env = {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]), "SHIFT": str(shift)}
    began = time.monotonic()
    options = ("--no-warm", "--restart-window", "10m", "--hang-timeout", "20s")
    job.start(*options, args=("--out", str(job.out), "--steps", "40", "--step-time", "0.02"), env=env)
    job.wait_step(10)
    os.kill(job.pids()[1], signal.SIGKILL)
    job.wait_event("incident")
    shift.write_text(str(jump))
    job.wait_event("attempt_started", 2)
    job.wait_step(20)
    os.kill(job.pids()[0], signal.SIGKILL)
    job.wait_event("incident", 2)
    shift.unlink()
    assert job.wait() == 0, job.stderr
    took = time.monotonic() - began
    lines = [json.loads(line) for line in job.journal_text.splitlines()]
    walls = [line["t"] for line in lines]
    assert walls != sorted(walls), "the clock has not jumped"
    assert [line["mono"] for line in lines] == sorted(line["mono"] for line in lines)
    assert [event["kind"] for event in job.events("incident")] == ["killed", "killed"]
    assert job.events("incident")[1]["restarts_left"] == 1  # the first is still within the window
    assert all(event["seconds"] < 60 for event in job.events("recovered"))
    assert max(job.losses()) == 39
    command = [sys.executable, "-m", "ftlaunch.cli.ctl"]
    told = subprocess.run([*command, "report", str(job.run_dir), "--json"], capture_output=True, text=True, check=True)
    report = json.loads(told.stdout)
    assert 0 < report["wall_seconds"] < took
    assert sum(report["seconds"].values()) == pytest.approx(report["wall_seconds"])
    assert Path(job.run_dir / "report.json").is_file()
    job.assert_clean()
