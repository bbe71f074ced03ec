"""`ftctl` run as users run it, and run dirs for it."""

from __future__ import annotations

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.cli import ctl
from ftlaunch_contract.protocol import memory_root
from tests.support.harness import JOBS, FtJob

BEATS = JOBS / "beats.py"


def ftctl(*words: str | Path, cwd: Path) -> tuple[int, str, str]:
    """Run the command in this process; return its exit code, stdout and stderr."""
    out = io.StringIO()
    err = io.StringIO()
    before = Path.cwd()
    os.chdir(cwd)
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as done:
            ctl.main([str(word) for word in words])
    finally:
        os.chdir(before)
    return int(done.value.code or 0), out.getvalue(), err.getvalue()


def start(job: FtJob, steps: int = 1_000_000, seconds: float = 0.005, **env: str) -> None:
    job.start(script=BEATS, args=(str(steps), str(seconds)), env=env)


def journal(run_dir: Path, *events: dict[str, Any]) -> Path:
    """Make a run dir that holds only a journal of `events`."""
    run_dir.mkdir(parents=True)
    lines = [{"t": "2031-01-02T03:04:05.000Z", "mono": n, "attempt": 0, **e} for n, e in enumerate(events)]
    (run_dir / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run_dir


def started(job_id: str = "j", **more: Any) -> dict[str, Any]:
    memory = memory_root(os.getuid()) / job_id
    return {"event": "job_started", "job_id": job_id, "pid": 1, "start_time": 0, "memory_dir": str(memory), **more}
