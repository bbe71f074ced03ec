"""Samples of tensors' values, which tell whether several ranks, or a rank and the process before it, hold the same.

A sample gathers some values of each tensor, at equal distances, without reading all bytes: tensors that have drifted
apart differ nearly everywhere. A single value that differs, as after a flipped bit, is found by replica_digests.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
import xxhash
from torch import Tensor

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Sampled(NamedTuple):
    """The sampled values of one tensor, as integers, so that a NaN is compared bit for bit."""

    words: Tensor
    """a one-dimensional view of the sampled values; of a tensor that is not contiguous, all of its values"""
    places: Tensor | None
    """for a tensor that is not contiguous: the indices of the sampled values in the flattened tensor"""

    def read(self) -> Tensor:
        return self.words if self.places is None else self.words.take(self.places)


class ValueSample:
    """The sampled values of some tensors, which each `digest` reads anew."""

    def __init__(self, tensors: Iterable[Tensor], values_each: int = 16) -> None:
        """Choose the values.

        Args:
            tensors: local and strided, in an order that is the same wherever the samples are compared.
            values_each: approximate number of values sampled from each tensor; a tensor with less than twice as many is
                sampled whole.
        """
        self._sampled: dict[torch.dtype, list[_Sampled]] = {}
        for tensor in tensors:
            if tensor.numel():
                sampled = _sampled(tensor, values_each)
                self._sampled.setdefault(sampled.words.dtype, []).append(sampled)

    def digest(self) -> int:
        """Return a hash, 64 unsigned bits, of the sampled values as they are now on any devices.

        Waits for what is queued on a device.
        """
        found = xxhash.xxh3_64()
        for sampled in self._sampled.values():
            for values in _read_in_order(sampled):
                found.update(values)
        return found.intdigest()


def _read_in_order(sampled: list[_Sampled]) -> Iterator[memoryview]:
    """Yield the bytes of the tensors' sampled values in order, with one copy from each device."""
    all_values = [tensor_sample.read() for tensor_sample in sampled]
    by_device: dict[torch.device, list[Tensor]] = {}
    for values in all_values:
        by_device.setdefault(values.device, []).append(values)
    copies = {device: _to_memory(torch.cat(values)) for device, values in by_device.items()}
    if len(copies) == 1:
        yield from copies.values()
        return
    position = dict.fromkeys(copies, 0)
    for values in all_values:
        end = position[values.device] + values.nbytes
        yield copies[values.device][position[values.device] : end]
        position[values.device] = end


def _to_memory(values: Tensor) -> memoryview:
    copy = values.cpu()
    return memoryview(ctypes.string_at(copy.data_ptr(), copy.nbytes))


def _sampled(tensor: Tensor, values_each: int) -> _Sampled:
    # Of a tensor that is kept as the conjugate or the negative of its memory, the memory itself is sampled.
    plain = torch._neg_view(tensor) if tensor.is_neg() else tensor
    if plain.is_complex():
        plain = torch.view_as_real(plain.conj() if plain.is_conj() else plain)
    words = plain.view(_WORDS[plain.element_size()])
    distance = max(words.numel() // values_each, 1) | 1  # odd, as rows often have a power of two values
    if words.is_contiguous():
        return _Sampled(words.view(-1)[::distance], None)
    return _Sampled(words, torch.arange(0, words.numel(), distance, device=words.device))
