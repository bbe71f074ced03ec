"""What is not exact in a training of MindSpore's is said, and what cannot be kept is refused with a sentence."""

from __future__ import annotations

import pytest
import torch
from tests.support import mindformers
from tests.support.harness import FtJob
from tests.support.mindspore_jobs import said, start, start_alone

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("style", "sentence"),
    [
        ("graph+dropout", "random numbers within MindSpore's kernels (Dropout)"),
        ("pynative+dropout", "random numbers within MindSpore's kernels (Dropout)"),
        ("graph+python", "Python's or NumPy's random numbers are drawn while training goes on"),
        ("graph+counts", "not saved: made of the callback Watch, which changed before step"),
    ],
)
def test_said(style: str, sentence: str, job: FtJob) -> None:
    process = start_alone(job, style)
    assert process.wait(60) == 0, said(job)
    assert said(job).count(sentence) == 1, said(job)


@pytest.mark.parametrize(
    ("style", "sentence"),
    [
        ("graph+careless", "cannot save when told to stop: the config says exception_save=False"),
        ("graph+twice", "cannot keep a second training of one process"),
    ],
)
def test_refused(style: str, sentence: str, job: FtJob) -> None:
    process = start_alone(job, style)
    assert process.wait(60) == 1
    assert sentence in said(job)


def test_weights_alone_are_refused(job: FtJob) -> None:
    """Those of MindSpore Transformers, too, which a script in torch begins with."""
    theirs = mindformers.write(job.home / "theirs", 8, {"first.weight": torch.zeros(4, 4)})
    start(job, "graph", "--load-checkpoint", str(theirs), "--no-resume-training")
    assert job.wait(60) == 1
    assert f"cannot begin with the weights of {theirs} alone: a training of MindSpore's goes on from all" in job.log(
        0, 0
    )
    job.assert_clean()


def test_another_network_is_refused_and_a_damaged_checkpoint_passed_over(job: FtJob) -> None:
    process = start_alone(job, "graph+saves+slow")
    assert process.wait(60) == 0, said(job)
    process = start_alone(job, "graph+wide")
    assert process.wait(60) == 1
    assert "cannot restore: the parameter first.weight is Float32 of shape (20, 8) now" in said(job)
    newest, *older = sorted((job.out / "checkpoints").glob("iteration_*"), reverse=True)
    shard = next(newest.glob("*-model-*"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    process = start_alone(job, "graph")
    assert process.wait(60) == 0, said(job)
    assert "checkpoint of step 24 refused" in said(job)
    assert older
    assert (job.out / "checkpoints/quarantine" / newest.name).is_dir()
