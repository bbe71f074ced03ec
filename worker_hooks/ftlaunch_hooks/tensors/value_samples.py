"""A sample of tensors' values, to tell whether several ranks, or a rank and one before it, hold the same.

A sample is a gather of some values of each tensor, at equal distances, and no sweep over its bytes: what has drifted
apart differs nearly everywhere. A single value that differs, as after a flipped bit, is what replica_digests.py finds.
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
    """The sampled values of one tensor, as integers: a NaN is compared bit for bit."""

    words: Tensor
    """a line of the sampled values; of a tensor that is not contiguous all of its values"""
    places: Tensor | None
    """of a tensor that is not contiguous: which values, as if it were a line"""

    def read(self) -> Tensor:
        return self.words if self.places is None else self.words.take(self.places)


class ValueSample:
    """The sampled values of some tensors, which are read anew at each `digest`."""

    def __init__(self, tensors: Iterable[Tensor], values_each: int = 16) -> None:
        """Choose the values.

        Args:
            tensors: local and strided, in an order that is the same wherever the samples are compared.
            values_each: how many of each tensor are sampled, about; of one that has less than twice as many, all.
        """
        self._sampled: dict[torch.dtype, list[_Sampled]] = {}
        for tensor in tensors:
            if tensor.numel():
                one = _sampled(tensor, values_each)
                self._sampled.setdefault(one.words.dtype, []).append(one)

    def digest(self) -> int:
        """Hash the sampled values, as they are now, on whatever devices they lie.

        Waits for what is queued on a device. Returns 64 bits, unsigned.
        """
        found = xxhash.xxh3_64()
        for sampled in self._sampled.values():
            for values in _read_in_order(sampled):
                found.update(values)
        return found.intdigest()


def _read_in_order(sampled: list[_Sampled]) -> Iterator[memoryview]:
    """Read the sampled values of some tensors, with one copy from each device."""
    read = [one.read() for one in sampled]
    of_device: dict[torch.device, list[Tensor]] = {}
    for values in read:
        of_device.setdefault(values.device, []).append(values)
    here = {device: _to_memory(torch.cat(values)) for device, values in of_device.items()}
    if len(here) == 1:
        yield from here.values()
        return
    begin = dict.fromkeys(here, 0)
    for values in read:
        end = begin[values.device] + values.nbytes
        yield here[values.device][begin[values.device] : end]
        begin[values.device] = end


def _to_memory(values: Tensor) -> memoryview:
    here = values.cpu()
    return memoryview(ctypes.string_at(here.data_ptr(), here.nbytes))


def _sampled(tensor: Tensor, values_each: int) -> _Sampled:
    plain = torch.view_as_real(tensor.conj() if tensor.is_conj() else tensor) if tensor.is_complex() else tensor
    words = plain.view(_WORDS[plain.element_size()])
    distance = max(words.numel() // values_each, 1) | 1  # odd: a row has a power of two values, often
    if words.is_contiguous():
        return _Sampled(words.view(-1)[::distance], None)
    return _Sampled(words, torch.arange(0, words.numel(), distance, device=words.device))
