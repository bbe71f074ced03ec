"""Tensors in memory, or still in a file of another library, as pieces of what was saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ftlaunch_contract.checkpoint.tensor_file import Chunk, Damaged, whole_chunk
from ftlaunch_hooks.storage.saved_tensors import SavedChunk, SavedTensors
from ftlaunch_hooks.tensors.dtypes import DTYPES


class TensorGetter:
    """A tensor that a function gives when it is wanted."""

    path = None  # its bytes do not lie in a file as they are wanted

    def __init__(self, read: Callable[[], Tensor]) -> None:
        self._read = read

    def tensor(self, chunk: Chunk, offset: int) -> Tensor:
        """The tensor of `chunk`. Raises OSError, or Damaged where it is not what the index says."""
        tensor = self._read()
        if tuple(tensor.shape) != chunk.shape or DTYPES.get(tensor.dtype) != chunk.dtype:
            raise Damaged(f"{chunk.key} is not of the shape and type that the index says")
        return tensor


def piece_of(key: str, tensor: Tensor) -> SavedChunk:
    """A whole tensor that is in memory, or mapped. Raises Damaged for a dtype that is not known."""
    return piece(whole_chunk(key, dtype_name(key, tensor), tensor.shape), lambda: tensor)


def piece(chunk: Chunk, read: Callable[[], Tensor]) -> SavedChunk:
    """A part of a tensor, to be read when it is wanted."""
    return SavedChunk(chunk, 0, TensorGetter(read))


def dtype_name(key: str, tensor: Tensor) -> str:
    """safetensors' name of a tensor's dtype. Raises Damaged for one that is not known."""
    if tensor.dtype not in DTYPES or tensor.layout is not torch.strided:
        raise Damaged(f"{key} is of a kind that cannot be loaded ({tensor.dtype}, {tensor.layout})")
    return DTYPES[tensor.dtype]


def unstacked(pieces: Iterable[SavedChunk], index: int) -> list[SavedChunk]:
    """Of a tensor in which those of several layers are stacked, the parts of one layer."""
    return [
        _layer(one, index) for one in pieces if one.chunk.offset[0] <= index < one.chunk.offset[0] + one.chunk.shape[0]
    ]


def _layer(one: SavedChunk, index: int) -> SavedChunk:
    chunk = one.chunk
    rest = replace(chunk, shape=chunk.shape[1:], offset=chunk.offset[1:], whole=chunk.whole[1:])
    return piece(rest, lambda: one.tensor()[index - chunk.offset[0]])


class PickedTensors(SavedTensors):
    """Pieces under the keys of the attached modules."""

    step, consumed_samples, world_size = 0, 0, 1

    def put(self, key: str, pieces: Iterable[SavedChunk]) -> None:
        """The pieces of one tensor."""
        self._pieces[key] = list(pieces)

    def state(self, rank: int) -> dict[str, Any]:
        """Nothing: only tensors are taken."""
        return {}

    def check(self) -> None:
        """Raises Damaged when a part of a tensor is missing."""
        self._check_whole()
