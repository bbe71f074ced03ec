"""Small tensors and arrays are packed as words of JSON, and come back bit for bit."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import torch

from ftlaunch_hooks.state.packed import pack, unpack
from ftlaunch_hooks.state.random_numbers import shared
from ftlaunch_hooks.tensors.json_codec import decode, encode


def _through_json(value: Any) -> Any:
    def refuse(path: Any, tensor: torch.Tensor) -> str:
        raise AssertionError(f"{path} is a tensor still")

    return unpack(
        decode(json.loads(json.dumps(encode(pack(value), ("x",), refuse))), lambda key, device: torch.empty(0))
    )


@pytest.mark.parametrize(
    "tensor",
    [torch.rand(3, 4), torch.tensor(float("nan")), torch.arange(5), torch.rand(4, 4).t(), torch.rand(3).bfloat16()],
)
def test_a_tensor_comes_back(tensor: torch.Tensor) -> None:
    again = _through_json({"a": [tensor]})["a"][0]
    assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
    assert again.contiguous().view(-1).view(torch.uint8).equal(tensor.contiguous().view(-1).view(torch.uint8))


def test_states_of_generators_come_back() -> None:
    random.gauss(0, 1)
    before = shared.read_raw()
    state = _through_json(shared.to_save(before))
    numbers = random.gauss(0, 1), torch.rand(()).item(), np.random.randn()
    shared.put_back(state)
    assert (random.gauss(0, 1), torch.rand(()).item(), np.random.randn()) == numbers
    key = np.random.RandomState(3).get_state(legacy=False)["state"]["key"]
    assert (_through_json({"key": key})["key"] == key).all()


def test_a_large_tensor_stays_one() -> None:
    large = torch.zeros(1 << 20)
    assert pack({"a": large})["a"] is large
