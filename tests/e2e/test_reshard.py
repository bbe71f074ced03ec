"""A job goes on with another number of ranks, or with its state shared out in another way: from storage and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.harness import JOBS, FtJob
from tests.support.waiting import wait_for

from ftlaunch_contract.checkpoint import layout, verify

SHAPES = JOBS / "shapes.py"
Told = list[dict[str, Any]]


def told(out: Path, moment: str) -> Told:
    """What every rank has told of a moment."""
    return [json.loads(path.read_text()) for path in sorted(out.glob(f"{moment}_*.json"))]


def run(job: FtJob, kind: str, ranks: int, steps: int, *options: str) -> Path:
    """Run shapes.py under ftlaunch until its end; returns where it has told of itself."""
    out = job.home / f"out_{len(job.supervisors)}"
    args = ("--kind", kind, "--steps", str(steps), "--out", str(out))
    job.start("--max-restarts", "0", *options, script=SHAPES, args=args, ranks=ranks)
    assert job.wait() == 0, job.stderr
    assert len(told(out, "end")) == ranks
    return out


def alone(home: Path, checkpoints: Path, steps: int) -> Path:
    """Run it in one process, without a process group and without ftlaunch."""
    out = home / "out_alone"
    env = {**os.environ, "FTLAUNCH_CHECKPOINT_DIR": str(checkpoints), "FTLAUNCH_RUN_DIR": str(home / "alone")}
    command = [sys.executable, str(SHAPES), "--out", str(out), "--steps", str(steps)]
    subprocess.run(command, env=env, cwd=home, check=True, timeout=120)
    return out


def assert_goes_on(before: Told, after: Told, step: int, source: str = "storage") -> None:
    """Model and optimizer bit for bit; of what each rank has its own of, a new rank gets rank 0's."""
    assert {(rank["step"], rank["from"]) for rank in after} == {(step, source)}
    assert {rank["digest"] for rank in after} == {before[0]["digest"]}
    assert {rank["lr"] for rank in after} == {before[0]["lr"]}
    for rank, now in enumerate(after):
        assert now["mine"] == before[rank if rank < len(before) else 0]["mine"]
        if rank < len(before):
            assert now["rng"] == before[rank]["rng"]
    if len(after) > len(before):  # no random numbers were saved for it: it keeps its own
        assert after[-1]["rng"] not in [rank["rng"] for rank in after[:-1]]


@pytest.mark.slow
def test_two_sharded_ranks_go_on_as_three_replicated_and_as_one_process(job: FtJob) -> None:
    checkpoints = job.run_dir / "checkpoints"
    two = told(run(job, "fsdp", 2, 4), "end")
    assert len({rank["digest"] for rank in two}) == 1
    one = alone(job.home, checkpoints, 5)
    assert_goes_on(two, told(one, "begin"), 4)
    verify.verify(layout.iteration_dir(checkpoints, 5))
    three = run(job, "ddp", 3, 6)
    assert_goes_on(told(one, "end"), told(three, "begin"), 5)
    assert job.events("resumed")[-1]["source"] == "storage"
    assert "1 rank saved the checkpoint of step 5, and now there are 3" in job.log(0, 0)
    job.assert_clean()


def killed_in_memory(job: FtJob, kind: str, ranks: int) -> None:
    """A job whose supervisor is killed: its snapshots stay in memory, and nothing is on storage."""
    args = ("--kind", kind, "--steps", "1000", "--step-time", "0.02", "--tell-steps", "--out", str(job.out))
    job.start("--storage-interval", "off", script=SHAPES, args=args, ranks=ranks)
    job.wait_step(5)
    pids = job.pids()
    job.supervisor.kill()
    job.supervisor.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the end of the ranks")
    assert layout.list_iterations(job.run_dir / "checkpoints") == []


def assert_memory_goes_on(job: FtJob, kind: str, ranks: int) -> None:
    """The job of `killed_in_memory`, started again in another shape."""
    begin = told(run(job, kind, ranks, 0), "begin")
    step = begin[0]["step"]
    before = told(job.out, f"after_{step}")
    assert step >= 5
    assert f"saved step {step} of {len(before)} ranks from memory" in job.stderr
    assert_goes_on(before, begin, step)
    job.assert_clean()


@pytest.mark.slow
def test_two_replicated_ranks_in_memory_go_on_as_three(job: FtJob) -> None:
    killed_in_memory(job, "ddp", 2)
    assert_memory_goes_on(job, "ddp", 3)


@pytest.mark.slow
def test_replicas_that_differ_are_shared_out_in_no_other_way(job: FtJob) -> None:
    """Taken out: as many ranks, and fewer ones, go on with a mosaic of what several replicas held."""
    args = ("--kind", "hsdp", "--apart", "--steps", "4", "--out", str(job.out))
    job.start("--max-restarts", "0", script=SHAPES, args=args, ranks=4)
    assert job.wait() == 0, job.stderr
    assert len({rank["weights"] for rank in told(job.out, "end")}) == 2
    assert "the ranks hold other values of `model`" in job.log(0, 0)
    for kind, ranks in (("fsdp", 4), ("hsdp", 2)):
        args = ("--kind", kind, "--steps", "6", "--out", str(job.home / kind))
        job.start("--max-restarts", "0", script=SHAPES, args=args, ranks=ranks)
        assert job.wait() != 0, job.stderr
        assert "ranks that were to hold the same of it have saved other values each" in job.log(0, 0)
        assert not told(job.home / kind, "begin")


# --- the full matrix --------------------------------------------------------------------------------------

MATRIX = [
    (("ddp", 2), ("plain", 1)),
    (("ddp", 2), ("ddp", 3)),
    (("ddp", 4), ("ddp", 2)),
    (("ddp", 1), ("ddp", 2)),
    (("ddp", 2), ("fsdp", 2)),
    (("ddp", 2), ("fsdp", 3)),
    (("ddp", 2), ("tp", 2)),
    (("fsdp", 2), ("plain", 1)),
    (("fsdp", 2), ("fsdp", 3)),
    (("fsdp", 4), ("fsdp", 2)),
    (("fsdp", 2), ("ddp", 2)),
    (("fsdp", 4), ("tp", 2)),
    (("tp", 2), ("plain", 1)),
    (("tp", 2), ("tp", 3)),
    (("tp", 2), ("fsdp", 2)),
    (("plain", 1), ("fsdp", 3)),
]


IN_CI = (("ddp", 2), ("fsdp", 2))  # other shards on as many ranks


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            *pair,
            id="-".join(f"{way}{ranks}" for way, ranks in pair),
            marks=pytest.mark.long if pair == IN_CI else pytest.mark.slow,
        )
        for pair in MATRIX
    ],
)
def test_any_shape_goes_on_as_any_other(job: FtJob, before: tuple[str, int], after: tuple[str, int]) -> None:
    first = told(run(job, *before, 4), "end")
    assert len({rank["digest"] for rank in first}) == 1
    assert_goes_on(first, told(run(job, *after, 6), "begin"), 4)
    job.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "after"), [("plain", 1), ("fsdp", 3), ("tp", 2)])
def test_snapshots_in_memory_go_on_in_other_shapes(job: FtJob, kind: str, after: int) -> None:
    killed_in_memory(job, "fsdp", 4)
    assert_memory_goes_on(job, kind, after)
