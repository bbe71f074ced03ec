"""The names of dtypes in files, and access to a DTensor's local part without importing DTensor."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

DTYPES: dict[torch.dtype, str] = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.float8_e8m0fnu: "F8_E8M0", torch.int16: "I16", torch.uint16: "U16",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.int32: "I32", torch.uint32: "U32",
    torch.float32: "F32", torch.int64: "I64", torch.uint64: "U64", torch.float64: "F64",
    torch.complex64: "C64",
}  # fmt: skip

TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


def is_sharded(tensor: object) -> bool:
    """Whether this is a DTensor. Does not import torch's module for it, which would take half a second."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_of(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a DTensor; any other tensor unchanged."""
    local: Tensor = tensor._local_tensor if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return local
