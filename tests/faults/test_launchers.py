"""Other launchers below ftlaunch: a shell script is a rank's first process, and torchrun is told that it cannot be."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from tests.support.harness import TINY, FtJob
from tests.support.leftovers import alive
from tests.support.waiting import wait_for

# as sites have it: Python is a child of the shell, which says how it went
WRAPPER = '"$0" -u "$@"; code=$?; echo "python ended with $code"; exit $code'
LOOKS_FIRST = f'"$0" -c "import torch"; {WRAPPER}'  # at the GPUs, say


def start(job: FtJob, *args: str, shell: str = WRAPPER, **more: object) -> None:
    words = ("-c", shell, sys.executable, str(TINY), "--out", str(job.out), *args)
    job.start("--no-python", script="/bin/sh", args=words, **more)  # type: ignore[arg-type]


@pytest.mark.long
def test_python_below_a_shell_script_is_the_rank(job: FtJob, calm: FtJob) -> None:
    """Taken out: without `acquire_page_for_launcher` the script is refused, as a job below another one."""
    start(job, env={"FAULT": "sigkill 1 7"})
    assert job.wait() == 0, job.stderr
    assert job.fired() == ["sigkill 1 0"]
    assert "python ended with 137" in job.log(0, 1)
    [incident] = job.events("incident")
    assert incident["rank"] == 1
    resumed = job.events("resumed")[-1]
    assert (resumed["source"], resumed["step"], resumed["steps_lost"]) == ("memory", 7, 0)
    assert job.losses() == calm.losses()
    assert job.final() == calm.final()
    job.assert_clean()


@pytest.mark.slow
def test_a_shell_script_that_is_killed_leaves_no_python_behind(job: FtJob, calm: FtJob) -> None:
    start(job, "--step-time", "0.05")
    job.wait_step(5)
    shell = job.pids()[1]
    [python] = psutil.Process(shell).children()
    os.kill(shell, signal.SIGKILL)
    job.wait_event("attempt_started", 2)
    assert not alive(python.pid)
    assert job.wait() == 0, job.stderr
    assert job.final() == calm.final()
    job.assert_clean()


@pytest.mark.slow
def test_a_shell_script_hands_on_that_its_rank_was_stopped(job: FtJob, calm: FtJob) -> None:
    start(job, "--step-time", "0.05", shell=LOOKS_FIRST)
    job.wait_step(5)
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.stderr
    start(job)
    assert job.wait() == 0, job.stderr
    assert job.events("resumed")[-1]["step"] >= 5
    assert job.final() == calm.final()
    job.assert_clean()


_SECOND = """
import pathlib, sys, time
import torch
import ftlaunch_hooks as ft
name, out = sys.argv[1], pathlib.Path(sys.argv[2])
def wait_for_file(path):
    while not path.exists():
        time.sleep(0.01)
if name == "second":
    wait_for_file(out / "attached")
    try:
        ft.attach(model=torch.nn.Linear(1, 1))
    except RuntimeError as error:
        (out / "refused.tmp").write_text(str(error))
        (out / "refused.tmp").rename(out / "refused")
    sys.exit()
job = ft.attach(model=torch.nn.Linear(1, 1))
(out / "attached").touch()
wait_for_file(out / "refused")
for step in job.steps(3):
    pass
"""


@pytest.mark.slow
def test_only_one_process_below_a_shell_script_is_the_rank(job: FtJob) -> None:
    """Taken out: without the look at the page's holder both train on one page."""
    job.out.mkdir()
    (job.home / "both.py").write_text(_SECOND)
    both = '"$0" both.py second "$1" & "$0" both.py first "$1"; code=$?; wait; exit $code'
    words = ("-c", both, sys.executable, str(job.out))
    job.start("--no-python", script="/bin/sh", args=words, ranks=1)
    assert job.wait() == 0, job.stderr
    assert "this process is none of its ranks" in (job.out / "refused").read_text()
    job.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_torchrun_below_ftlaunch_is_refused_in_words(job: FtJob, ranks: str) -> None:
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    words = ("--standalone", "--nproc-per-node", ranks, str(TINY), "--out", str(job.out))
    job.start("--no-python", "--max-restarts", "3", script=torchrun, args=words, ranks=1)
    wait_for(lambda: job.supervisor.poll() is not None, "the end", 120.0)
    assert job.supervisor.returncode == 1
    assert f"cannot attach: ftlaunch (pid {job.supervisor.pid}) runs this job" in job.log(0, 0)
    assert "have ftlaunch start the script itself" in job.log(0, 0)
    (incident,) = job.events("incident")
    assert (incident["verdict"], incident["kind"]) == ("give up", "second-launcher"), "a restart was spent on it"
    job.assert_clean()
