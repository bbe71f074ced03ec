"""Marks on checkpoints: how they come about, what is kept and gone back to because of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tests.support import checkpoints
from torch import nn

from ftlaunch_contract.checkpoint import health_mark, layout, retention, verify
from ftlaunch_hooks.snapshots.slot import Slot
from ftlaunch_hooks.state.collector import TensorItem


@pytest.fixture
def tmp_path(memory: Path) -> Path:
    """Nothing here depends on a disk."""
    return memory


def test_the_worst_of_the_ranks_counts() -> None:
    normal, unknown = health_mark.mark("normal"), health_mark.mark("unknown", "nobody looked")
    abnormal = health_mark.mark("abnormal", "the loss was nan at step 3")
    assert health_mark.join([normal, normal]) == normal
    assert health_mark.join([normal, unknown]) == health_mark.mark("unknown", "rank 1: nobody looked")
    assert health_mark.join([unknown, abnormal])["why"] == "rank 1: the loss was nan at step 3"
    assert health_mark.join([normal], "replicas differ") == health_mark.mark("abnormal", "replicas differ")


@pytest.mark.parametrize("found", [None, 3, "normal", {}, {"status": "fine"}, {"status": None, "why": 3}])
def test_what_is_no_mark_is_unknown(found: object) -> None:
    assert health_mark.of({"health": found})["status"] == "unknown"


def save(directory: Path, step: int, status: str) -> None:
    path = checkpoints.checkpoint(directory, step)
    metadata = verify.read_metadata(path)
    (path / layout.METADATA).write_bytes(verify.seal({**metadata, health_mark.KEY: health_mark.mark(status)}))


def test_a_checkpoint_of_snapshots_that_say_nothing_is_unknown(tmp_path: Path) -> None:
    assert health_mark.of(verify.verify(checkpoints.checkpoint(tmp_path, 3)))["status"] == "unknown"


@pytest.mark.parametrize(
    ("statuses", "keep", "left"),
    [
        ("nnnn", 1, [4]),
        ("nnaa", 1, [4, 2]),
        ("nnaa", 3, [4, 3, 2]),
        ("naua", 2, [4, 3, 1]),
        ("uuuu", 1, [4]),
    ],
)
def test_the_newest_healthy_one_stays(tmp_path: Path, statuses: str, keep: int, left: list[int]) -> None:
    words = {"n": "normal", "a": "abnormal", "u": "unknown"}
    for step, status in enumerate(statuses, 1):
        save(tmp_path, step, words[status])
    list(retention.retire(tmp_path, keep))
    assert checkpoints.steps(tmp_path) == left


def test_the_newest_healthy_one_before_a_step(tmp_path: Path) -> None:
    for step, status in enumerate(["normal", "normal", "abnormal", "unknown", "normal"], 1):
        save(tmp_path, step, status)
    assert verify.newest_verified(tmp_path)[0] == 5
    assert verify.newest_verified(tmp_path, 5) == (2, [])
    checkpoints.flip_a_bit(layout.iteration_dir(tmp_path, 2))
    step, (refusal,) = verify.newest_verified(tmp_path, 5)
    assert (step, refusal.step) == (1, 2)
    assert checkpoints.steps(tmp_path) == [5, 4, 3, 1], "the others were passed over, not refused"
    assert verify.newest_verified(tmp_path, 1) == (-1, [])


# --- looking at the parameters --------------------------------------------------------------------------------


def item(key: str, tensor: torch.Tensor, group: str = "model", settled: bool = True) -> TensorItem:
    return TensorItem(key, tensor, (0,) * tensor.dim(), tuple(tensor.shape), True, group, settled)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_parameter_that_is_not_finite(tmp_path: Path, value: float, dtype: torch.dtype) -> None:
    weight = nn.Parameter(torch.ones(3, 5, dtype=dtype)).detach()
    mask = torch.full((4,), -math.inf)  # a buffer may well be
    whole = torch.arange(3)
    items = [item("w", weight), item("mask", mask, settled=False), item("n", whole), item("m", mask, "opt")]
    slot = Slot(tmp_path, 0, 0)
    for expected in (health_mark.mark("normal"), health_mark.mark("abnormal", "w is not finite")):
        slot.lay_out(items)
        slot.host.run()
        assert slot.health("", checks_parameters=True) == expected
        assert slot.health("", checks_parameters=False)["status"] == "unknown"
        assert slot.health("the loss was nan", checks_parameters=False) == health_mark.mark(
            "abnormal", "the loss was nan"
        )
        weight[1, 2] = value
    slot.close()
