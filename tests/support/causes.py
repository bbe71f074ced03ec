"""Jobs of two ranks, without torch, in which tests/jobs/causes.py makes a fault happen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.harness import JOBS, FtJob

CAUSES = JOBS / "causes.py"
QUICK = ("--backoff-first", "0.1s", "--backoff-max", "0.2s", "--storage-interval", "off")


def run(
    job: FtJob, fault: str, *options: str, steps: int = 12, script: Path | str = CAUSES, held: bool = False
) -> int:  # fmt: skip
    """Run a job on two ranks with a fault in its first attempt; check that the fault fired, and return the exit code.

    Args:
        job: the job to start.
        fault: the value of FAULT: the kind, the rank, and more where the kind takes more.
        options: further options of ftlaunch.
        steps: the number of steps.
        script: the script, or a job spec in YAML, which takes no argument.
        held: whether HELD=1 is set for the script.
    """
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
