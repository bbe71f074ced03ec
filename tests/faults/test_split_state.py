"""State that one rank holds for all (Muon) is saved by that rank: killed and stopped, the job goes on bit for bit.

Taken out: `OptimizerPart` counts every optimizer as one that updates all parameters, or `Collector.finish` takes every
candidate for a replica. Then the first checkpoint is refused, or the losses differ.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.harness import JOBS, FtJob

from ftlaunch_contract.checkpoint import layout, verify

SCRIPT = JOBS / "split.py"
WORDS = ("--steps", "20")


@pytest.fixture
def other_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FtJob]:
    """One that is left undisturbed."""
    job = FtJob(tmp_path_factory.mktemp("undisturbed"))
    yield job
    job.dispose()


def start(job: FtJob, *more: str, ranks: int = 2, fault: str = "") -> None:
    args = ("--out", str(job.out), *WORDS, *more)
    job.start("--storage-interval", "off", script=SCRIPT, args=args, ranks=ranks, env={"FAULT": fault} if fault else {})


@pytest.mark.slow
def test_split_optimizers_go_on_bit_for_bit_from_memory_and_from_storage(job: FtJob, other_job: FtJob) -> None:
    start(other_job)
    assert other_job.wait() == 0, other_job.stderr
    start(job, "--step-time", "0.05", fault="sigkill 1 5")
    job.wait_step(8)
    assert job.fired() == ["5"]
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr
    [(stopped, directory)] = layout.list_iterations(job.run_dir / "checkpoints")
    tensors = verify.verify(directory)["tensors"]
    assert "own.state.model.0.0.weight.momentum" in tensors
    assert "own.state.model.0.0.bias.momentum@1" in tensors, "rank 1 steps it, and holds it alone"
    assert "everywhere.state.model.1.0.weight.momentum@1" in tensors
    assert "whole.state.model.3.0.weight.exp_avg@1" not in tensors, "torch's own, on all ranks: saved once"
    assert "model.2.0.weight@1" not in tensors

    start(job, ranks=3)
    assert job.wait() != 0
    assert "start with 2 ranks" in job.stderr

    start(job)
    assert job.wait() == 0, job.stderr
    resumed = [(event["source"], event["step"]) for event in job.events("resumed") if event["source"]]
    assert resumed[0] == ("memory", 5)
    assert resumed[-1] == ("storage", stopped)
    for rank in range(2):
        assert job.losses(rank) == other_job.losses(rank)
    assert job.final() == other_job.final()
    job.assert_clean()
