"""What jobs of frameworks leave, and have said."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.harness import JOBS, FtJob

FINDS_JOBS = {"PYTHONPATH": os.pathsep.join([str(JOBS), *filter(None, [os.environ.get("PYTHONPATH")])])}
"""for a script that lies elsewhere, and imports what lies beside those of tests/jobs"""


def logs(job: FtJob) -> str:
    """What all ranks of all attempts have said."""
    return "".join(path.read_text() for path in sorted((job.run_dir / "logs").rglob("*.log")))


def left(out: Path) -> dict[str, object]:
    """What each rank has at its end, and its lines by their first words: a step that was made twice was made alike."""
    found: dict[str, object] = {path.name: path.read_text() for path in sorted(out.glob("final_*"))}
    for path in sorted(out.glob("losses_*")):
        losses: dict[str, str] = {}
        for line in path.read_text().splitlines():
            step, told = line.split(maxsplit=1)
            assert losses.setdefault(step, told) == told, f"{step} was made twice, differently"
        found[path.name] = losses
    return found


def again(job: FtJob, name: str = "again") -> None:
    """Another job with the same name, and folders of its own."""
    job.out, job.run_dir = job.home / name, job.home / f"run_{name}"
