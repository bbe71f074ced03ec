"""Write NumPy arrays into a tensor file of a snapshot slot, and read tensor files of slots and of checkpoints.

A tensor file is a header and the bytes of its chunks (ftlaunch_contract.checkpoint.tensor_file). MindSpore's bfloat16
arrays are written bit for bit; NumPy has no such type, so `read` widens them to float32, which is exact.
"""

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
    """Return one chunk for each array, in the order of the file that holds them all."""
    return tensor_file.file_order(
        tensor_file.whole_chunk(key, DTYPES[array.dtype.name], array.shape) for key, array in arrays.items()
    )


def write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write a tensor file in place.

    The file's whole space is reserved first, so that a lack of space shows before anything is written.

    Args:
        path: the file; it is made, or overwritten.
        arrays: values by key.

    Raises:
        OSError: the file cannot be written, for instance for lack of space.
    """
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
    """Return copies of all arrays of a tensor file by key, those of bfloat16 as float32.

    Raises:
        Damaged: the file is cut short, is no tensor file, or holds a part of an array or a type that MindSpore lacks.
        OSError: the file cannot be read.
    """
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
    """Return the bits of bfloat16 values as float32, and arrays of other types unchanged."""
    return (flat.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else flat
