"""What a Trainer reads is read on where it was: streams, and batches that are made with random numbers."""

from __future__ import annotations

import json

import pytest
from tests.adapters.kit import FrameworkJob
from tests.support.harness import FtJob
from tests.support.packages import require

from ftlaunch_contract.checkpoint import layout

require("transformers", reason="Transformers is not installed (make frameworks)")
require("accelerate", reason="Accelerate is not installed (make frameworks)")
pytestmark = pytest.mark.long

SHARED_OUT = 'accelerator_config={"dispatch_batches":true}'
WORKERS, ACCUMULATES = "dataloader_num_workers=2", "gradient_accumulation_steps=2"
OFTEN = ("stream in workers",)  # in CI
# name: ranks, faults (one an attempt), kind and options
SHAPES: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "noise": (1, "kill 0 3;kill 0 4;kill 0 7", ("noisy", "rows=12", "max_steps=9")),
    "noise, accumulated": (2, "kill 1 2;epoch 0 3;kill 0 5", ("noisy", "rows=24", "max_steps=7", ACCUMULATES)),
    "noise in workers": (1, "kill 0 3;kill 0 8", ("noisy", "rows=12", "max_steps=10", WORKERS)),
    "masks": (1, "kill 0 3;kill 0 8", ("mlm", "rows=12", "max_steps=10", "seed_of_data=null")),
    "seeded masks": (1, "kill 0 3;kill 0 8", ("mlm", "rows=12", "max_steps=10")),
    "seeded masks in workers": (2, "kill 1 3;kill 0 8", ("mlm", "rows=24", "max_steps=10", WORKERS)),
    "stream": (1, "kill 0 3;epoch 0 6;kill 0 9", ("stream", "rows=12", "max_steps=11")),
    "stream, own numbers": (1, "kill 0 3;kill 0 9", ("stream", "rows=12", "max_steps=11", 'draws="own"')),
    "stream, Python's numbers": (1, "kill 0 3;kill 0 9", ("stream", "rows=12", "max_steps=11", 'draws="python"')),
    "stream in workers": (
        2,
        "kill 1 3;kill 0 8",
        ("stream", "rows=22", "max_steps=9", 'draws="torch"', ACCUMULATES, WORKERS),
    ),
    "streaming": (1, "kill 0 3;epoch 0 6;kill 0 9", ("streaming", "rows=12", "max_steps=11")),
    "streaming in workers": (2, "kill 1 3;kill 0 8", ("streaming", "rows=24", "max_steps=10", WORKERS)),
    "streaming, each rank its own": (
        2,
        "kill 1 3;kill 0 8",
        ("streaming", "rows=24", "max_steps=10", ACCUMULATES, 'accelerator_config={"dispatch_batches":false}'),
    ),
    "rows, read by one rank for all": (2, "kill 1 3;kill 0 8", ("plain", "rows=24", "max_steps=10", SHARED_OUT)),
    "epochs that a callback ends": (1, "kill 0 3;kill 0 7;kill 0 12", ("short", "rows=12", "max_steps=14")),
}


@pytest.mark.slow
@pytest.mark.exact(
    "Transformers",
    "streams (`datasets`' and torch's), with workers and over several passes",
    "collators that draw random numbers (MLM)",
)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in SHAPES]
)
def test_killed_it_reads_the_batches_that_it_would_have_read(job: FtJob, name: str) -> None:
    """Taken out: without the numbers of the batch read ahead `noise` differs; without reading on `noise in workers`;
    with a collator that does not take the generator for one of this process `seeded masks`.
    """
    ranks, faults, words = SHAPES[name]
    run = FrameworkJob("hf.py", job, *words, ranks=ranks)
    undisturbed = run.undisturbed()
    run.start(faults)
    assert job.wait() == 0, job.stderr
    assert len(job.fired()) == faults.count(";") + 1
    run.assert_same(undisturbed)
    logs = "".join(path.read_text() for path in (job.run_dir / "logs").rglob("*.log"))
    assert "not exact" not in logs
    job.assert_clean()


@pytest.mark.slow
def test_another_order_is_said(job: FtJob) -> None:
    """A shuffle without a seed: each process reads the rows in another order. Taken out: nothing is said."""
    run = FrameworkJob("hf.py", job, "streaming", "rows=40", "max_steps=8", "seed_of_data=null")
    run.start("kill 0 5")
    assert job.wait() == 0, job.stderr
    assert job.fired() == ["kill 0 5 0"]
    assert job.log(1, 0).count("the batches with which this run goes on are not those that it had here before") == 1
    job.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "draws"), [("plain", False), ("noisy", True)])
def test_the_order_that_a_pass_ends_with_counts_for_no_draw(job: FtJob, kind: str, draws: bool) -> None:
    """RandomSampler draws one at the end of a pass, and uses none of it. Taken out: each step saves all numbers."""
    run = FrameworkJob("hf.py", job, kind, "rows=12", "max_steps=9")
    run.start()
    assert job.wait() == 0, job.stderr
    (_, directory), *_ = layout.list_iterations(job.run_dir / "checkpoints")
    data = json.loads((directory / "common.json").read_text())["state"]["trainer"]["state"]["data"]
    assert (data["pass"], data["draws"]) == (1, draws)
    assert bool(data["noted"]) == draws
