"""Arrays in tensor files: written into a snapshot slot, read from a slot or from a checkpoint."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ftlaunch_contract.checkpoint import tensor_file
from ftlaunch_contract.checkpoint.tensor_file import Chunk, Damaged
from ftlaunch_contract.files import atomic

Array = np.ndarray[Any, Any]

DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32",
    "int64": "I64", "uint64": "U64", "float16": "F16", "float32": "F32", "float64": "F64", "complex64": "C64",
    "bfloat16": "BF16",
}  # fmt: skip
_NUMPY = {**{kind: name for name, kind in DTYPES.items()}, "BF16": "uint16"}  # NumPy itself has no bfloat16


def layout_of(arrays: Mapping[str, Array]) -> list[Chunk]:
    """The chunks of a file that holds these arrays, in their order in the file."""
    return tensor_file.file_order(
        tensor_file.whole_chunk(key, DTYPES[array.dtype.name], array.shape) for key, array in arrays.items()
    )


def write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write a tensor file in place: its memory is reserved first. Raises OSError."""
    chunks = layout_of(arrays)
    header, _ = tensor_file.build_header(chunks)
    size = len(header) + sum(chunk.nbytes for chunk in chunks)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        os.ftruncate(fd, size)
        atomic.write_all(fd, header)
        for chunk in chunks:
            if chunk.nbytes:
                atomic.write_all(fd, np.ascontiguousarray(arrays[chunk.name]).reshape(-1).view(np.uint8).data)
    finally:
        os.close(fd)


def read(path: Path) -> dict[str, Array]:
    """Every array of a tensor file, a copy; those of bfloat16 as float32. Raises Damaged and OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks, begins, _ = tensor_file.read_header(fd)
    finally:
        os.close(fd)
    found: dict[str, Array] = {}
    for chunk, begin in zip(chunks, begins, strict=True):
        if chunk.shape != chunk.whole or chunk.dtype not in _NUMPY:
            raise Damaged(f"{chunk.name} was not saved by one rank of MindSpore")
        count = math.prod(chunk.shape)
        flat: Array = np.fromfile(path, dtype=_NUMPY[chunk.dtype], count=count, offset=begin)
        if len(flat) != count:
            raise Damaged(f"{path.name} is cut short")
        found[chunk.key] = _widened(flat, chunk.dtype).reshape(chunk.shape)
    return found


def _widened(flat: Array, dtype: str) -> Array:
    return (flat.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else flat
