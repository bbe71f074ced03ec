"""Megatron-core on a GPU with its distributed optimizer: killed twice, it ends as undisturbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.harness import JOBS, FtJob
from tests.support.packages import require

require("megatron", reason="Megatron-core is not installed (pip install megatron-core)")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("style", ["fp32", "bf16", "bf16+distributed"])
def test_killed_twice_it_ends_as_if_undisturbed(job: FtJob, device: str, style: str) -> None:
    ends = []
    for name, words, faults in (("calm", "+plain", ""), ("broken", "", "step 0 3; step 0 8")):
        job.out, job.run_dir = job.home / name, job.home / f"run_{name}"
        env = {"FAULT": faults, "FT_DEVICE": device}
        args = (str(job.out), style + words)
        job.start("--no-warm", script=JOBS / "megatron_gpt.py", args=args, env=env, ranks=1)
        assert job.wait(180) == 0, job.stderr
        ends.append((sorted(set(lines(job.out / "losses_0"))), lines(job.out / "final_0")))
    assert len(job.fired()) == 2
    assert ends[0] == ends[1]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
