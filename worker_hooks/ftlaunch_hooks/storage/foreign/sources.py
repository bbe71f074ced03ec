"""Presents tensors in memory, or still in another library's file, as pieces of SavedTensors."""

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
    """A tensor that a function returns when it is wanted."""

    path = None  # there is no file in which the bytes lie as in memory

    def __init__(self, read: Callable[[], Tensor]) -> None:
        self._read = read

    def tensor(self, chunk: Chunk, offset: int) -> Tensor:
        """Return the tensor of `chunk`. Raises OSError, and Damaged if it is not what the index says."""
        tensor = self._read()
        if tuple(tensor.shape) != chunk.shape or DTYPES.get(tensor.dtype) != chunk.dtype:
            raise Damaged(f"{chunk.key} is not of the shape and type that the index says")
        return tensor


def piece_of(key: str, tensor: Tensor) -> SavedChunk:
    """Return the piece of a whole tensor that is in memory or mapped. Raises Damaged for an unknown dtype."""
    return piece(whole_chunk(key, dtype_name(key, tensor), tensor.shape), lambda: tensor)


def piece(chunk: Chunk, read: Callable[[], Tensor]) -> SavedChunk:
    """Return the piece of a tensor's part that `read` returns when it is wanted."""
    return SavedChunk(chunk, 0, TensorGetter(read))


def dtype_name(key: str, tensor: Tensor) -> str:
    """Return safetensors' name of a tensor's dtype. Raises Damaged for an unknown dtype."""
    if tensor.dtype not in DTYPES or tensor.layout is not torch.strided:
        raise Damaged(f"{key} is of a kind that cannot be loaded ({tensor.dtype}, {tensor.layout})")
    return DTYPES[tensor.dtype]


def unstacked(pieces: Iterable[SavedChunk], index: int) -> list[SavedChunk]:
    """Return the parts of one layer, out of the parts of a tensor that stacks several layers."""
    layers = []
    for stacked in pieces:
        first = stacked.chunk.offset[0]
        if first <= index < first + stacked.chunk.shape[0]:
            layers.append(_layer(stacked, index))
    return layers


def _layer(stacked: SavedChunk, index: int) -> SavedChunk:
    chunk = stacked.chunk
    layer = replace(chunk, shape=chunk.shape[1:], offset=chunk.offset[1:], whole=chunk.whole[1:])
    return piece(layer, lambda: stacked.tensor()[index - chunk.offset[0]])


class PickedTensors(SavedTensors):
    """Pieces of another library's checkpoint, under the keys of the attached modules."""

    step = 0
    consumed_samples = 0
    world_size = 1

    def put(self, key: str, pieces: Iterable[SavedChunk]) -> None:
        """Add the pieces of one tensor."""
        self._pieces[key] = list(pieces)

    def state(self, rank: int) -> dict[str, Any]:
        """Return an empty state: only tensors are read."""
        return {}

    def check(self) -> None:
        """Raise Damaged if a part of a tensor is missing."""
        self._check_whole()
