"""Which engines are refused, by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed (make deepspeed)")

from ftlaunch_hooks.adapters.deepspeed import attaching
from ftlaunch_hooks.job.restore import AttachError

COUNTS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")


def refusal(refused: Any) -> str:
    """Return the sentence that refuses an engine; empty where nothing does."""
    try:
        attaching.kept(refused, lambda: 0)
    except AttachError as error:
        return str(error)
    return ""


def engine(kind: str = "DeepSpeedEngine", **changes: object) -> Any:
    """Stands for an engine that is allowed but for `changes`."""
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    members: dict[str, Any] = {
        **dict.fromkeys(COUNTS, 0),
        **dict.fromkeys(("module", "lr_scheduler", "basic_optimizer")),
        "optimizer": torch.optim.SGD(parameters),
        "has_moe_layers": False,
        "mp_world_size": 1,
        "gradient_accumulation_steps": lambda: 1,
        "managed_gradient_accumulation": lambda: True,
        "zero_optimization_stage": lambda: 0,
        **changes,
    }
    return type(kind, (SimpleNamespace,), {})(**members)


@pytest.mark.parametrize(
    ("kind", "changes", "sentence"),
    [
        ("PipelineEngine", {}, "cannot attach to a PipelineEngine: allowed is the DeepSpeedEngine"),
        ("DeepSpeedEngine", {"has_moe_layers": True}, "`has_moe_layers` of the engine is set: experts have"),
        (
            "DeepSpeedEngine",
            {"zero_offload_param": lambda: SimpleNamespace(device="nvme")},
            "`zero_offload_param` of the engine is",
        ),
        ("DeepSpeedEngine", {"mp_world_size": 2}, "DeepSpeed's own tensor parallelism is not supported here yet"),
        ("DeepSpeedEngine", {"optimizer": None}, "the engine has no optimizer"),
        (
            "DeepSpeedEngine",
            {"optimizer": SimpleNamespace(optimizer=None)},
            "the engine's optimizer is a SimpleNamespace; known are",
        ),
    ],
)
def test_what_is_not_known_is_refused(kind: str, changes: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(engine(kind, **changes))


def test_what_is_known_is_let_through() -> None:
    for device in ("none", "cpu"):
        known = engine(zero_offload_optimizer=lambda device=device: SimpleNamespace(device=device))
        assert refusal(known) == ""


def test_an_optimizer_that_may_keep_more_is_refused() -> None:
    class OnebitAdam(torch.optim.SGD):
        """It keeps errors of its compression."""

    refused = engine(optimizer=OnebitAdam([torch.nn.Parameter(torch.zeros(1))]))
    assert "OnebitAdam may keep what is not in its state" in refusal(refused)


def test_an_engine_that_has_moved_is_refused() -> None:
    moved = engine()
    del moved.micro_steps
    assert "DeepSpeedEngine has no `micro_steps`, which DeepSpeed 0.18 and 0.19 has" in refusal(moved)
