"""What jobs of training frameworks leave on disk and write to their logs."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.harness import JOBS, FtJob

FINDS_JOBS = {"PYTHONPATH": os.pathsep.join([str(JOBS), *filter(None, [os.environ.get("PYTHONPATH")])])}
"""the environment for a script outside of tests/jobs that imports modules of tests/jobs"""


def logs(job: FtJob) -> str:
    """Return what all ranks of all attempts have written."""
    return "".join(path.read_text() for path in sorted((job.run_dir / "logs").rglob("*.log")))


def left(out: Path) -> dict[str, object]:
    """Return each rank's final state, and its losses by step; check that a repeated step was repeated exactly."""
    found: dict[str, object] = {path.name: path.read_text() for path in sorted(out.glob("final_*"))}
    for path in sorted(out.glob("losses_*")):
        losses: dict[str, str] = {}
        for line in path.read_text().splitlines():
            step, loss = line.split(maxsplit=1)
            assert losses.setdefault(step, loss) == loss, f"{step} was made twice, differently"
        found[path.name] = losses
    return found


def prepare_second_run(job: FtJob, name: str = "again") -> None:
    """Give a job new folders for a second run under the same name."""
    job.out, job.run_dir = job.home / name, job.home / f"run_{name}"
