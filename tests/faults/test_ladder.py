"""The ladder of a resume: a rung that does not hold is left for the newest of all that do, wherever that is."""

from __future__ import annotations

import shutil

import pytest
from tests.support.harness import FtJob

from ftlaunch_contract.checkpoint import layout


@pytest.mark.slow
@pytest.mark.parametrize(
    "others",
    [
        pytest.param(False, id="no other checkpoint"),
        pytest.param(True, id="older checkpoints", marks=pytest.mark.slow),
    ],
)
def test_a_damaged_checkpoint_that_is_newer_than_memory_falls_back_to_memory(
    job: FtJob, calm: FtJob, others: bool
) -> None:
    """The supervisor is killed; of a newer step there is a checkpoint, which cannot be used."""
    args = ("--out", str(job.out), "--step-time", "0.03")
    job.start("--storage-interval", "5", args=args)
    job.wait_event("checkpoint_committed")
    job.wait_step(12)
    job.supervisor.kill()
    job.supervisor.wait()
    storage = job.run_dir / "checkpoints"
    (newest, whole), *_ = layout.list_iterations(storage)
    damaged = layout.iteration_dir(storage, 900)
    shutil.copytree(whole, damaged)
    next(damaged.glob("*-model-*")).write_bytes(b"")
    if not others:
        for _, directory in layout.list_iterations(storage)[1:]:
            shutil.rmtree(directory)

    job.start("--storage-interval", "off", args=args)
    assert job.wait() == 0, job.stderr
    assert [event["step"] for event in job.events("checkpoint_rejected")] == [900]
    resumed = job.events("resumed")[-1]
    assert resumed["source"] == "memory"
    assert resumed["step"] >= max(12, newest)
    assert job.losses() == calm.losses()
    assert job.final() == calm.final()
    job.assert_clean()
