"""Jobs of tests/jobs/mindspore_*.py, in an environment without torch that `make mindspore` makes."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.support.agents import free_port
from tests.support.harness import JOBS, FtJob
from tests.support.waiting import wait_for

ROOT = JOBS.parents[1]
PYTHON = ROOT / ".venv-mindspore/bin/python"
SCRIPT = JOBS / "mindspore_train.py"
PATHS = {"PYTHONPATH": f"{ROOT / 'supervisor'}:{ROOT / 'worker_hooks'}:{JOBS}", "OMP_NUM_THREADS": "1", "GLOG_v": "3"}


def start(job: FtJob, style: str, *options: str, ranks: int = 1, faults: str = "", script: Path = SCRIPT) -> None:
    """Start a job under the supervisor; a snapshot is taken at every step unless `options` say otherwise."""
    job.python = str(PYTHON)
    options = ("--max-restarts", "4", "--backoff-first", "0.05s", *options)
    env = {**PATHS, "FAULT": faults}
    job.start(*options, script=script, args=(str(job.out), style), ranks=ranks, env=env)


def start_alone(job: FtJob, style: str, script: Path = SCRIPT) -> subprocess.Popen[str]:
    """Start the script without a supervisor; its output goes to the file `said`."""
    return _start(job, [PYTHON, script, job.out, style])


def start_by_msrun(job: FtJob, style: str, ranks: int = 2, script: Path = SCRIPT) -> subprocess.Popen[str]:
    """Start ranks of the script by MindSpore's own launcher; their output goes to files in msrun/."""
    count = [f"--worker_num={ranks}", f"--local_worker_num={ranks}", f"--master_port={free_port()}"]
    msrun = [PYTHON.with_name("msrun"), *count, f"--log_dir={job.home / 'msrun'}", "--join=True"]
    return _start(job, [*msrun, script, job.out, style])


def _start(job: FtJob, command: list[str | Path]) -> subprocess.Popen[str]:
    name, _, value = job.tag.partition("=")
    path = f"{PYTHON.parent}:{os.environ['PATH']}"  # msrun starts the `python` that it finds
    with (job.home / "said").open("a") as output:
        process = subprocess.Popen(
            command, cwd=job.home, text=True, stdout=output, stderr=output,
            env={**os.environ, **PATHS, "PATH": path, name: value},
        )  # fmt: skip
    job.supervisors.append(process)
    return process


def said(job: FtJob) -> str:
    """Return the output of all runs that were started without a supervisor."""
    return (job.home / "said").read_text()


def signal_at(job: FtJob, process: subprocess.Popen[str], step: int, signum: signal.Signals) -> None:
    """Wait until the script, started without a supervisor, has made `step` steps in all, and send it a signal."""

    def made() -> bool:
        assert process.poll() is None, said(job)
        path = job.out / "losses"
        return path.exists() and len(path.read_text().splitlines()) >= step

    wait_for(made, f"step {step}", 60.0)
    process.send_signal(signum)


def left_by(ranks: int, out: Path) -> list[dict[str, object]]:
    """Return what each of several ranks has left."""
    return [left(out / str(rank)) for rank in range(ranks)]


def left(out: Path) -> dict[str, object]:
    """Return what a rank has left: the final digest, and each step's loss, data and epoch.

    Repeated steps must agree.
    """
    losses: dict[int, str] = {}
    for line in (out / "losses").read_text().splitlines():
        step, loss = line.split()
        assert losses.setdefault(int(step), loss) == loss, f"step {step} was made twice, differently"
    return {"final": (out / "final").read_text(), "losses": losses}


def undisturbed(home: Path, style: str, ranks: int = 1, script: Path = SCRIPT) -> list[dict[str, object]]:
    """Return what each rank of the script leaves without ExceptionCheckpoint and without a supervisor."""
    job = FtJob(home)
    try:
        plain = f"{style}+plain"
        process = start_alone(job, plain, script) if ranks == 1 else start_by_msrun(job, plain, ranks, script)
        assert process.wait(120) == 0, said(job)
    finally:
        job.dispose()
    return [left(job.out)] if ranks == 1 else left_by(ranks, job.out)
