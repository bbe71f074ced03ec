"""What EasyCkpt's calls refuse before anything is built."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch import nn

pytest.importorskip("megatron.core", reason="Megatron-core is not installed (pip install megatron-core)")

from ftlaunch_hooks.adapters.easyckpt import megatron
from ftlaunch_hooks.adapters.easyckpt.megatron import inside
from ftlaunch_hooks.job.restore import AttachError


def optimizer_of(name: str, **options: object) -> object:
    return type(name, (), {"optimizer": None, "config": SimpleNamespace(**options)})()


def test_the_other_calls_come_behind_load_checkpoint() -> None:
    with pytest.raises(AttachError, match=r"cannot initialize: load_checkpoint\(\) was not called before"):
        megatron.initialize_easyckpt(save_mem_interval=1, save_storage_interval=5, max_ckpt_num=5)
    with pytest.raises(AttachError, match=r"cannot save: load_checkpoint\(\) was not called before"):
        megatron.save_checkpoint_if_needed(1, [], None, None)


@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_intervals_are_whole_numbers(number: object) -> None:
    with pytest.raises(
        AttachError, match=r"cannot initialize: max_ckpt_num is .*: allowed is a whole number from 1 on"
    ):
        megatron.initialize_easyckpt(1, 5, number)  # type: ignore[arg-type]


def test_what_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(AttachError, match="LayerWiseDistributedOptimizer is not known here; known are FP32Optimizer"):
        inside.optimizers_of(optimizer_of("LayerWiseDistributedOptimizer"))
    with pytest.raises(AttachError, match="`overlap_param_gather` is set: weights are gathered behind the step"):
        inside.optimizers_of(optimizer_of("DistributedOptimizer", overlap_param_gather=True))
    with pytest.raises(AttachError, match="a model in FullyShardedDataParallel is not supported here yet"):
        inside.check_model([type("FullyShardedDataParallel", (nn.Module,), {})()])
    with pytest.raises(AttachError, match="--exit-signal-handler takes SIGTERM for itself"):
        inside.check_arguments(SimpleNamespace(exit_signal_handler=True))


def test_a_missing_attribute_is_named() -> None:
    moved = type("FP32Optimizer", (), {"config": None})()
    with pytest.raises(AttachError, match=r"FP32Optimizer has no `optimizer`, which Megatron-core 0\.16 has"):
        inside.optimizers_of(moved)
