"""Jobs of two ranks, without torch, in which a fault of tests/jobs/causes.py happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.harness import JOBS, FtJob

CAUSES = JOBS / "causes.py"
QUICK = ("--backoff-first", "0.1s", "--backoff-max", "0.2s", "--storage-interval", "off")


def run(
    job: FtJob, fault: str, *options: str, steps: int = 12, script: Path | str = CAUSES, held: bool = False
) -> int:  # fmt: skip
    """The exit code of a job on two ranks in which `fault` happens, the first of an attempt each; it did happen."""
    args = () if str(script).endswith(".yaml") else (str(steps),)
    job.start(*QUICK, *options, script=script, args=args, env={"FAULT": fault} | ({"HELD": "1"} if held else {}))
    code = job.wait()
    kind, rank = fault.split()[:2]
    assert f"{kind} {rank} 0" in fired(job), job.stderr
    return code


def fired(job: FtJob) -> list[str]:
    return (job.home / "fired").read_text().splitlines()


def incident(job: FtJob, number: int = -1) -> dict[str, Any]:
    return job.events("incident")[number]
