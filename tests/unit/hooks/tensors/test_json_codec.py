"""State as JSON: exact there and back, and a refusal that says where."""

from __future__ import annotations

import collections
import enum
import json
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from ftlaunch_hooks.tensors.json_codec import JsonCache, StateError, decode, encode


class Point(NamedTuple):
    x: int


class Color(str, enum.Enum):
    RED = "red"


def round_trip(value: Any) -> Any:
    tensors: dict[str, torch.Tensor] = {}

    def put(path: tuple[Any, ...], tensor: torch.Tensor) -> str:
        key = ".".join(map(str, path))
        tensors[key] = tensor.clone()
        return key

    text = json.dumps(encode(value, ("it",), put), allow_nan=False)
    return decode(json.loads(text), lambda key, device: tensors[key])


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**200),
        0.1 + 0.2,
        -0.0,
        5e-324,
        "snow ☃ and \0",
        [],
        {},
        (),
        ((1,), [2, (3,)]),
        {"a": {"b": [1, {"c": None}]}},
        {3: "three", "3": "three as text", -1: ()},
        {"__tensor__": "not ours", "x": 1},
        {"x": {"__pairs__": [], "type": "dict"}},
        {"__tuple__": (1, 2)},
        collections.OrderedDict([("b", 1), ("a", 2)]),
        collections.Counter({30: 2, 80: 1}),
        torch.bfloat16,
        torch.device("cpu"),
        torch.Size([2, 3]),
    ],
    ids=repr,
)
def test_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    back = round_trip(value)
    assert back == value
    assert repr(back) == repr(value)  # types inside, order of keys, the sign of zero


def test_order_of_keys_is_kept() -> None:
    assert list(round_trip({"b": 1, "a": 2, "c": 3})) == ["b", "a", "c"]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_floats_that_json_has_no_word_for(value: float) -> None:
    assert repr(round_trip([value])) == repr([value])


@pytest.mark.parametrize(
    "value",
    [
        np.float64(0.1),
        np.float32(0.1),
        np.float16(7),
        np.int64(-5),
        np.uint8(5),
        np.bool_(True),
        np.float64("inf"),
    ],
    ids=repr,
)
def test_numpy_scalars(value: Any) -> None:
    back = round_trip(value)
    assert type(back) is type(value)
    assert back.tobytes() == value.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1],
        np.array(3, dtype=np.int64),
        np.zeros((0, 3), dtype=np.uint8),
        np.array([True, False]),
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_numpy_arrays(array: Any) -> None:
    back = round_trip({"cache": array})["cache"]
    assert type(back) is np.ndarray
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert (back == array).all()


def test_tensors_are_named_by_their_path() -> None:
    tree = encode({"a": [torch.zeros(2)]}, ("ema",), lambda path, tensor: ".".join(map(str, path)))
    assert tree == {"a": [{"__tensor__": "ema.a.0"}]}


@pytest.mark.parametrize(
    ("value", "where", "kind"),
    [
        ({"cache": {"x": {1, 2}}}, "sampler.cache.x", "set"),
        ({"cache": {"a b": b"12"}}, "sampler.cache['a b']", "bytes"),
        ([1, (2, lambda: 0)], "sampler[1][1]", "function"),
        ({3: Point(1)}, "sampler[3]", f"{__name__}.Point"),
        ({"color": Color.RED}, "sampler.color", f"{__name__}.Color"),
        ({"d": collections.defaultdict(int)}, "sampler.d", "collections.defaultdict"),
        ({"z": np.complex128(1)}, "sampler.z", "numpy.complex128"),
        ({"z": np.longdouble(1)}, "sampler.z", "numpy.longdouble"),
        ({"z": 1j}, "sampler.z", "complex"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refusal_names_path_and_type(value: Any, where: str, kind: str) -> None:
    with pytest.raises(StateError) as refusal:
        encode(value, ("sampler",), lambda path, tensor: "")
    assert f"cannot save `{where}`" in str(refusal.value)
    assert kind in str(refusal.value)
    assert "allowed are None, bool" in str(refusal.value)


def test_refuses_keys_and_arrays_it_cannot_write() -> None:
    with pytest.raises(StateError, match=r"`s.k`: it has the key \(1, 2\) of type tuple"):
        encode({"k": {(1, 2): 0}}, ("s",), lambda path, tensor: "")
    with pytest.raises(StateError, match=r"`s\.k`: an array of dtype object"):
        encode({"k": np.array([None])}, ("s",), lambda path, tensor: "")


def test_json_cache_redoes_what_is_another_object() -> None:
    cache, fixed = JsonCache(), {"x": [1, 2]}
    for lr in (0.1, 0.2):
        tree = {"opt": {"state": fixed, "groups": [{"lr": lr}], "kind": "é"}, "rng": {"n": lr}}
        assert json.loads(cache.dumps(tree)) == tree
