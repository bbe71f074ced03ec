"""Packs small tensors into JSON, so that values which come and go with the epochs do not change a snapshot's layout.

A pass that is under way has states of random numbers to be saved, and between two passes there are none. As tensors
they would change the layout of the snapshot's files at each end of an epoch.
"""

from __future__ import annotations

import base64
import sys
from typing import Any

import torch
from torch import Tensor

from ftlaunch_hooks.tensors.dtypes import DTYPES

_MAX_BYTES = 1 << 16  # of a tensor that is packed: states of generators have 5 KB at most
_TENSOR = "packed tensor"
_ARRAY = "packed array"
_KNOWN = {str(dtype): dtype for dtype in DTYPES}


def pack(value: Any) -> Any:
    """Return a value with its small tensors and arrays as JSON; larger ones stay as they are."""
    if isinstance(value, Tensor):
        return _packed(_TENSOR, value) if _is_small(value) else value
    if isinstance(value, (list, tuple)):
        return type(value)([pack(item) for item in value]) if type(value) in (list, tuple) else value
    if type(value) is dict:
        return {key: pack(item) for key, item in value.items()}
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray and str(value.dtype) in ("uint32", "uint64", "int64"):
        return {_ARRAY: [str(value.dtype), list(value.shape), base64.b64encode(value.tobytes()).decode()]}
    return value


def unpack(value: Any) -> Any:
    """Return the value that `pack` was given."""
    if type(value) in (list, tuple):
        return type(value)([unpack(item) for item in value])
    if type(value) is not dict:
        return value
    if value.keys() == {_TENSOR}:
        dtype, shape, encoded = value[_TENSOR]
        flat = torch.frombuffer(bytearray(base64.b64decode(encoded)), dtype=torch.uint8)
        return flat.view(_KNOWN[dtype]).reshape(shape)
    if value.keys() == {_ARRAY}:
        import numpy  # noqa: PLC0415 - only jobs that have used it need it

        dtype, shape, encoded = value[_ARRAY]
        return numpy.frombuffer(bytearray(base64.b64decode(encoded)), dtype=dtype).reshape(shape)
    return {key: unpack(item) for key, item in value.items()}


def _is_small(tensor: Tensor) -> bool:
    plain = type(tensor) is Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"
    return plain and 0 < tensor.nbytes <= _MAX_BYTES and str(tensor.dtype) in _KNOWN


def _packed(tag: str, tensor: Tensor) -> dict[str, Any]:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return {tag: [str(tensor.dtype), list(tensor.shape), base64.b64encode(flat.numpy().tobytes()).decode()]}
