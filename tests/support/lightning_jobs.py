"""Starts tests/jobs/pl.py, and reads what a job has left, so that tests compare disturbed and undisturbed jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support import framework_results
from tests.support.harness import JOBS, FtJob

SCRIPT = JOBS / "pl.py"
WARM = ("--warm", "--preload", "lightning.pytorch,ftlaunch_hooks.job.attaching")
OPTIONS = (*WARM, "--backoff-first", "0.05s", "--backoff-max", "0.1s")


def start(
    job: FtJob, style: str, *options: str, ranks: int = 1, faults: str = "", env: Mapping[str, str] | None = None
) -> None:
    """Start a job of pl.py; a snapshot is taken at every step unless `options` say otherwise."""
    words = (str(job.out), style)
    job.start(
        *OPTIONS,
        *options,
        script=SCRIPT,
        args=words,
        ranks=ranks,
        env={"FAULT": faults, "OMP_NUM_THREADS": "1", **(env or {})},
    )


def left(out: Path) -> dict[str, object]:
    """Return what a job has left, with the lines of its metrics."""
    found = framework_results.left(out)
    for path in sorted(out.glob("csv/*/metrics.csv")):
        found[str(path.relative_to(out))] = path.read_text()
    found["folders"] = sorted(path.name for path in out.glob("csv/*"))
    return found
