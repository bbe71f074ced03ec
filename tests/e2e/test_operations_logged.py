"""Saves, deletions and moves of checkpoints: in the journal, and in the file that a script names for them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.support.ctl import ftctl
from tests.support.harness import FtJob

from ftlaunch_contract.checkpoint import layout

SCRIPT = """
import sys
import torch
import ftlaunch_hooks as ft
from ftlaunch_hooks.adapters.easyckpt.asked import begin_log

torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job = ft.attach(model=model, optimizer=optimizer)
begin_log(sys.argv[1], first=True)
for step in range(job.step, 6):
    optimizer.zero_grad()
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    job.save()
    job.step_done()
job.finish()
"""


@pytest.mark.long
def test_a_supervised_job(job: FtJob) -> None:
    script = job.home / "logs_saves.py"
    script.write_text(SCRIPT)
    for more in ((), ("--fresh",)):
        job.start("--keep", "1", *more, script=script, args=("test.log",), ranks=1)
        assert job.wait() == 0, job.stderr
    log = (job.home / "test.log").read_text()
    place = job.run_dir / "checkpoints"
    committed, deleted = job.events("checkpoint_committed"), job.events("checkpoint_deleted")
    (moved,) = job.events("checkpoint_moved")
    assert moved["step"] == 6 and moved["why"] == "--fresh"
    assert moved["path"] == str(layout.iteration_dir(place, 6))
    assert (layout.MARK in os.listdir(moved["to"])) and f"Z moved step 6 from {moved['path']} to {moved['to']}" in log
    assert len(committed) >= 2
    for event in committed:
        assert f"Z saved step {event['step']} ({event['why']}, {event['bytes']} bytes) to {event['path']}\n" in log
    for event in deleted:
        assert f"Z deleted step {event['step']}, {event['path']} (retention, 1 are kept)\n" in log
    assert log.count("\n") == len(committed) + len(deleted) + 1
    assert ftctl("checkpoints", str(place), "prune", "--keep", "1", cwd=job.home)[0] == 0
    assert ftctl("report", str(job.run_dir), cwd=job.home)[0] == 0
    job.assert_clean()


@pytest.mark.slow
def test_a_job_without_a_supervisor(job: FtJob) -> None:
    storage = job.home / "checkpoints"
    (job.home / "logs_saves.py").write_text(SCRIPT)
    words = [sys.executable, "logs_saves.py", "test.log"]
    name, _, value = job.tag.partition("=")
    environ = {**os.environ, "FTLAUNCH_CHECKPOINT_DIR": str(storage), "FTLAUNCH_KEEP": "1", name: value}
    for more in ({}, {"FTLAUNCH_FRESH": "1"}):
        done = subprocess.run(words, env=environ | more, cwd=job.home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    log = (job.home / "test.log").read_text()
    assert f" bytes) to {layout.iteration_dir(storage, 6)}\n" in log
    assert "Z FTLAUNCH_FRESH=1: earlier checkpoints are now in " in log and "(steps: 6)\n" in log
    saved, gone = (sum(f"Z {verb} step " in line for line in log.splitlines()) for verb in ("saved", "deleted"))
    assert saved - gone == 2, log
