"""Shards that some ranks have saved are cut anew for others: every value once, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ftlaunch_hooks.adapters.easyckpt.merging import MergeError, merge, same, stands_for, stretches

WHOLE = {"master": torch.arange(20.0), "exp_avg": torch.arange(100, 120).bfloat16()}


def cut(ranks: int, size: int = 20) -> list[list[int]]:
    """As Megatron cuts a buffer: the last ranks may have nothing."""
    each = -(-size // ranks)
    return [[min(rank * each, size), min((rank + 1) * each, size)] for rank in range(ranks)]


def saved(first: int, last: int, step: float = 7.0, lr: float = 0.5) -> dict[str, Any]:
    """What a rank has saved that had one parameter's values from `first` to `last`."""
    shards = {}
    if first < last:
        state = {"exp_avg": WHOLE["exp_avg"][first:last], "step": torch.tensor(step)}
        shards["0.w"] = {"range": [first, last], "group": 1, "master": WHOLE["master"][first:last], "state": state}
    return {"shards": shards, "groups": [{"lr": 9.0}, {"lr": lr if shards else 9.0}]}


class Ranks:
    """Ranks that have saved, and whose values were looked at."""

    def __init__(self, *entries: dict[str, Any]) -> None:
        self.entries, self.read = dict(enumerate(entries)), list[int]()

    def read_state(self, rank: int, values: bool) -> dict[str, Any]:
        self.read += [rank] if values else []
        return self.entries[rank]


@given(before=st.integers(1, 24), now=st.integers(1, 24))
def test_each_new_rank_has_its_range_of_the_whole(before: int, now: int) -> None:
    """Taken out: with a source slice that begins at 0, or a target slice that does."""
    ranks = Ranks(*(saved(*span) for span in cut(before)))
    for first, last in cut(now):
        if first == last:
            continue
        merged = merge({"0.w": [first, last]}, ranks.entries, ranks.read_state)
        entry = merged.shards["0.w"]
        assert entry["range"] == [first, last]
        assert same(entry["master"], WHOLE["master"][first:last].clone())
        assert same(entry["state"]["exp_avg"], WHOLE["exp_avg"][first:last].clone())
        assert same(entry["state"]["step"], torch.tensor(7.0))
        assert entry["group"] == 1
        assert merged.groups == {1: {"lr": 0.5}}


def test_only_ranks_that_have_a_part_are_read() -> None:
    ranks = Ranks(*(saved(*span) for span in cut(4)))
    merge({"0.w": [6, 9]}, ranks.entries, ranks.read_state)
    assert ranks.read == [1]


@pytest.mark.parametrize(
    "held",
    [{}, {0: [0, 3]}, {0: [0, 3], 1: [4, 9]}, {0: [0, 4], 1: [3, 9]}, {0: [1, 9]}, {0: [0, 9], 1: [3, 9]}],
)
def test_a_value_that_nobody_has_saved_or_two_have_is_refused(held: dict[int, list[int]]) -> None:
    """Taken out: without the look at where a part begins, or at where the last one ends, values are left out."""
    with pytest.raises(MergeError, match=r"of its values 0 to 9 each is to be saved once, and they were saved: "):
        stretches([0, 9], held)


def test_the_parameter_is_named_that_nobody_has_saved() -> None:
    ranks = Ranks(saved(0, 20))
    with pytest.raises(MergeError, match=r"`0\.other`: of its values 0 to 5 each is to be saved once"):
        merge({"0.other": [0, 5]}, ranks.entries, ranks.read_state)


def drop(entry: dict[str, Any]) -> None:
    entry["shards"]["0.w"]["state"] = {}


def other_dtype(entry: dict[str, Any]) -> None:
    entry["shards"]["0.w"]["master"] = entry["shards"]["0.w"]["master"].half()


def other_step(entry: dict[str, Any]) -> None:
    entry["shards"]["0.w"]["state"]["step"] = torch.tensor(8.0)


def other_group(entry: dict[str, Any]) -> None:
    entry["shards"]["0.w"]["group"] = 0


def other_rate(entry: dict[str, Any]) -> None:
    entry["groups"][1]["lr"] = 0.25


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (drop, r"do not agree on `step`"),
        (other_dtype, r"`master` is of torch\.float16 and of torch\.float32"),
        (other_step, r"do not agree on `step`"),
        (other_group, r"do not agree on `group`"),
        (other_rate, r"do not agree on the optimizer's parameter group 1"),
    ],
)
def test_what_ranks_had_otherwise_is_refused(change: Any, told: str) -> None:
    entries = [saved(*span) for span in cut(2)]
    change(entries[1])
    ranks = Ranks(*entries)
    with pytest.raises(MergeError, match=told):
        merge({"0.w": [0, 20]}, ranks.entries, ranks.read_state)


def test_before_the_first_step_there_are_no_slots() -> None:
    entries = [saved(*span) for span in cut(2)]
    for entry in entries:
        drop(entry)
    ranks = Ranks(*entries)
    entry = merge({"0.w": [5, 15]}, ranks.entries, ranks.read_state).shards["0.w"]
    assert entry["state"] == {}
    assert same(entry["master"], WHOLE["master"][5:15].clone())


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), True),
        (torch.tensor(0.0), torch.tensor(-0.0), False),
        (torch.tensor(1.0), torch.tensor(1), False),
        ([1, {"a": torch.ones(2)}], [1, {"a": torch.ones(2)}], True),
        ([1, {"a": torch.ones(2)}], [1, {"a": torch.ones(2), "b": 0}], False),
        ((1, 2), (1, 2, 3), False),
        (1, 1.0, False),
        (None, None, True),
    ],
)
def test_same_is_bit_for_bit(one: Any, other: Any, is_same: bool) -> None:
    assert same(one, other) is is_same


def layout(tensor: int, stage: int, data: int) -> dict[str, int]:
    sizes = {"tensor_model_parallel": 2, "pipeline_model_parallel": 2}
    places = {"tensor_model_parallel_rank": tensor, "pipeline_model_parallel_rank": stage}
    return {**sizes, **places, "data_parallel_rank": data}


def test_a_rank_stands_for_one_with_its_places() -> None:
    """Taken out: by the rank's number alone a rank of the second stage goes on with the first stage's state."""
    before = [layout(tensor, stage, data) for stage in range(2) for data in range(2) for tensor in range(2)]
    for data in range(5):
        for stage in range(2):
            for tensor in range(2):
                found = before[stands_for(layout(tensor, stage, data), before)]
                assert found == layout(tensor, stage, data % 2)


def test_a_place_that_nobody_had_is_refused() -> None:
    with pytest.raises(
        MergeError, match=r"none of the 2 ranks that saved had the places .*'tensor_model_parallel_rank': 1"
    ):
        stands_for(layout(1, 0, 0), [layout(0, 0, 0), layout(0, 1, 0)])


def test_a_tensor_of_one_value_is_cut_like_others() -> None:
    one: dict[str, Tensor] = {"exp_avg": torch.tensor([3.0])}
    entry = {"shards": {"0.b": {"range": [4, 5], "group": 0, "state": one}}, "groups": [{}]}
    assert same(merge({"0.b": [4, 5]}, [0], lambda *_: entry).shards["0.b"]["state"], one)
