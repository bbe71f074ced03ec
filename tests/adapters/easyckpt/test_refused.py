"""What EasyCkpt's calls refuse before anything is built.

The tests import the calls, and with them Megatron-core, which takes two seconds.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.nodes import process_group
from tests.support.packages import require
from torch import nn

from ftlaunch_hooks.job.restore import AttachError

if TYPE_CHECKING:
    from ftlaunch_hooks.adapters.easyckpt.megatron.shards import Shards

require("megatron", reason="Megatron-core is not installed (pip install megatron-core)")


def optimizer_of(name: str, **options: object) -> object:
    return type(name, (), {"optimizer": None, "config": SimpleNamespace(**options)})()


def test_the_other_calls_come_behind_load_checkpoint() -> None:
    from ftlaunch_hooks.adapters.easyckpt import megatron

    with pytest.raises(AttachError, match=r"cannot initialize: load_checkpoint\(\) was not called before"):
        megatron.initialize_easyckpt(save_mem_interval=1, save_storage_interval=5, max_ckpt_num=5)
    with pytest.raises(AttachError, match=r"cannot save: load_checkpoint\(\) was not called before"):
        megatron.save_checkpoint_if_needed(1, [], None, None)


@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_intervals_are_whole_numbers(number: object) -> None:
    from ftlaunch_hooks.adapters.easyckpt import megatron

    with pytest.raises(
        AttachError, match=r"cannot initialize: max_ckpt_num is .*: allowed is a whole number from 1 on"
    ):
        megatron.initialize_easyckpt(1, 5, number)  # type: ignore[arg-type]


def test_what_is_not_known_is_refused_by_name() -> None:
    from ftlaunch_hooks.adapters.easyckpt.megatron import inside

    with pytest.raises(AttachError, match="LayerWiseDistributedOptimizer is not known here; known are FP32Optimizer"):
        inside.optimizers_of(optimizer_of("LayerWiseDistributedOptimizer"))
    with pytest.raises(AttachError, match="`overlap_param_gather` is set: weights are gathered behind the step"):
        inside.optimizers_of(optimizer_of("DistributedOptimizer", overlap_param_gather=True))
    with pytest.raises(AttachError, match="a model in FullyShardedDataParallel is not supported here yet"):
        inside.check_model([type("FullyShardedDataParallel", (nn.Module,), {})()])
    with pytest.raises(AttachError, match="--exit-signal-handler takes SIGTERM for itself"):
        inside.check_arguments(SimpleNamespace(exit_signal_handler=True))


def test_a_missing_attribute_is_named() -> None:
    from ftlaunch_hooks.adapters.easyckpt.megatron import inside

    moved = type("FP32Optimizer", (), {"config": None})()
    with pytest.raises(AttachError, match=r"FP32Optimizer has no `optimizer`, which Megatron-core 0\.16 has"):
        inside.optimizers_of(moved)


def shards_of(model: nn.Linear, span: tuple[int, int], groups: int = 1) -> tuple[Shards, Any]:
    """Of a rank that steps a range of a weight of 16 bits, and an optimizer that does."""
    from ftlaunch_hooks.adapters.easyckpt.megatron.shards import Shards

    master = model.weight.detach().view(-1)[slice(*span)].float()
    inner = torch.optim.AdamW([{"params": [master] if not number else []} for number in range(groups)], lr=0.5)
    ranges = {"param": SimpleNamespace(start=span[0], end=span[1])}
    none: list[list[Any]] = [[] for _ in range(groups)]
    of_16_bits, masters = [[model.weight], *none[1:]], [[master], *none[1:]]
    optimizer = SimpleNamespace(
        optimizer=inner, data_parallel_group=None, model_float16_groups=of_16_bits, model_fp32_groups=none,
        shard_fp32_from_float16_groups=masters, shard_fp32_groups=none, _get_model_param_range_map=lambda _: ranges,
    )  # fmt: skip
    with process_group(0, 2):
        return Shards(optimizer, [model]), inner


def test_shards_go_where_they_were_and_nowhere_else() -> None:
    """Taken out: without the check a rank whose buckets are others goes on with masters of other values.

    And without the groups' values with the learning rate that the optimizer was built with.
    """
    torch.manual_seed(1)
    saver, inner = shards_of(nn.Linear(4, 4, bias=False).bfloat16(), (4, 12))
    (master,) = inner.param_groups[0]["params"]
    master.grad = torch.ones(8)
    inner.step()
    inner.param_groups[0]["lr"] = 0.25
    saved = saver.state_dict()
    assert saved["shards"]["0.weight"]["master"] is master, "a snapshot knows its tensors again by identity"

    taker, other = shards_of(nn.Linear(4, 4, bias=False).bfloat16(), (4, 12))
    held = other.param_groups[0]["params"][0]
    taker.load_state_dict(saved)
    assert other.param_groups[0]["params"][0] is held
    assert held.equal(master)
    assert (other.param_groups[0]["lr"], other.state[held]["step"].item()) == (0.25, 1.0)
    assert other.state[held]["exp_avg"].equal(inner.state[master]["exp_avg"])

    for span, groups, told in (((0, 8), 1, r"\(range: \[4, 12\] then, \[0, 8\] now"), ((4, 12), 2, "parameter groups")):
        with pytest.raises(AttachError, match=f"cannot restore: the distributed optimizer shares .*{told}"):
            shards_of(nn.Linear(4, 4, bias=False).bfloat16(), span, groups)[0].load_state_dict(saved)
    with pytest.raises(AttachError, match=r"shares `0\.weight` out .* \(on this rank: none then, a part now"):
        taker.load_state_dict({**saved, "shards": {}})


def test_merged_shards_take_the_place_of_those_of_the_rank_for_which_one_stands() -> None:
    """Taken out: with the groups of that rank a group of which it had no parameter keeps what it began with."""
    saved: list[dict[str, Any]] = []
    model = nn.Linear(4, 4, bias=False).bfloat16()
    for span in ((0, 6), (6, 16)):
        one, inner = shards_of(model, span)
        inner.param_groups[0]["lr"] = 0.125
        saved.append(one.state_dict())
    nothing = {"ranks": [0, 1], "groups": [{**saved[0]["groups"][0], "lr": 0.5}], "shards": {}}
    taker, other = shards_of(nn.Linear(4, 4, bias=False).bfloat16(), (4, 12))
    taker.merge(nothing, lambda rank, values: saved[rank])
    taker.load_state_dict(nothing)
    assert other.param_groups[0]["params"][0].equal(model.weight.detach().view(-1)[4:12].float())
    assert other.param_groups[0]["lr"] == 0.125


def test_a_distributed_optimizer_that_is_built_otherwise_is_refused() -> None:
    from ftlaunch_hooks.adapters.easyckpt.megatron.shards import Shards

    with pytest.raises(AttachError, match="SimpleNamespace has no `data_parallel_group`, which Megatron-core"):
        Shards(SimpleNamespace(optimizer=None), [])
