"""Small tensors as words of JSON: what comes and goes with the epochs does not change the layout of the snapshots.

A pass that is under way has states of random numbers to be saved, and between two passes there are none. As tensors
they would be laid out anew at each end of an epoch.
"""

from __future__ import annotations

import base64
import sys
from typing import Any

import torch
from torch import Tensor

from ftlaunch_hooks.tensors.dtypes import DTYPES

_MOST = 1 << 16  # bytes of a tensor that is packed: the states of generators have 5 KB at most
_TENSOR, _ARRAY = "packed tensor", "packed array"
_KNOWN = {str(dtype): dtype for dtype in DTYPES}


def pack(value: Any) -> Any:
    """Return a value with its small tensors and arrays as words; larger ones stay."""
    if isinstance(value, Tensor):
        return _packed(_TENSOR, value) if _is_small(value) else value
    if isinstance(value, (list, tuple)):
        return type(value)([pack(one) for one in value]) if type(value) in (list, tuple) else value
    if type(value) is dict:
        return {key: pack(one) for key, one in value.items()}
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray and str(value.dtype) in ("uint32", "uint64", "int64"):
        return {_ARRAY: [str(value.dtype), list(value.shape), base64.b64encode(value.tobytes()).decode()]}
    return value


def unpack(value: Any) -> Any:
    """Return what `pack` was given."""
    if type(value) in (list, tuple):
        return type(value)([unpack(one) for one in value])
    if type(value) is not dict:
        return value
    if value.keys() == {_TENSOR}:
        dtype, shape, words = value[_TENSOR]
        flat = torch.frombuffer(bytearray(base64.b64decode(words)), dtype=torch.uint8)
        return flat.view(_KNOWN[dtype]).reshape(shape)
    if value.keys() == {_ARRAY}:
        import numpy  # noqa: PLC0415 - only jobs that have used it need it

        dtype, shape, words = value[_ARRAY]
        return numpy.frombuffer(bytearray(base64.b64decode(words)), dtype=dtype).reshape(shape)
    return {key: unpack(one) for key, one in value.items()}


def _is_small(tensor: Tensor) -> bool:
    plain = type(tensor) is Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"
    return plain and 0 < tensor.nbytes <= _MOST and str(tensor.dtype) in _KNOWN


def _packed(tag: str, tensor: Tensor) -> dict[str, Any]:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return {tag: [str(tensor.dtype), list(tensor.shape), base64.b64encode(flat.numpy().tobytes()).decode()]}
