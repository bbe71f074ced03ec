"""What is not exact in a training of MindSpore's is said, and what cannot be kept is refused with a sentence."""

from __future__ import annotations

import pytest
import torch
from tests.support import mindformers
from tests.support.checkpoints import content_of
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


WEIGHTS = {
    "first.weight": torch.arange(128.0).reshape(16, 8) / 1000,
    "first.bias": torch.zeros(16),
    "second.weight": torch.arange(48.0).reshape(3, 16) / 1000,
    "second.bias": torch.zeros(3),
}


def test_a_training_begins_with_weights_of_mindspore_transformers(job: FtJob) -> None:
    """Cut for four cards they are the same weights as those of one card, and other weights end otherwise."""
    cuts: dict[str, list[mindformers.Axis]] = {"first.weight": [0, -1], "second.weight": [-1, 1]}
    other = {**WEIGHTS, "second.bias": torch.tensor([2.0, 0.0, 0.0])}
    theirs = {
        "four": mindformers.write(job.home / "four", 8, WEIGHTS, cuts),
        "one": mindformers.write(job.home / "one", 8, WEIGHTS, matrix=(1,)),
        "other": mindformers.write(job.home / "other", 8, other, matrix=(1,)),
    }
    ends = {}
    for name, folder in theirs.items():
        before = content_of(folder)
        place = ("--run-dir", str(job.home / f"run_{name}"))
        start(job, "graph+plain_layers", *place, "--load-checkpoint", str(folder), "--no-resume-training")
        assert job.wait(120) == 0, job.stderr
        assert "taking the weights" in job.stderr and "the job begins at step 0" in job.stderr
        assert content_of(folder) == before, "nothing is written there"
        ends[name] = (job.out / "final").read_text()
    assert ends["four"] == ends["one"] != ends["other"]
    job.assert_clean()


def test_weights_of_another_network_are_refused(job: FtJob) -> None:
    theirs = mindformers.write(job.home / "theirs", 8, {**WEIGHTS, "third.bias": torch.ones(3)}, matrix=(1,))
    start(job, "graph+plain_layers", "--load-checkpoint", str(theirs), "--no-resume-training")
    assert job.wait(120) == 1
    assert "cannot load weights: third.bias is among them, and no parameter of the network" in job.log(0, 0)
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
