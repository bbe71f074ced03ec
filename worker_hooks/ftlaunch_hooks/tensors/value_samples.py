"""A sample of tensors' values, to tell whether several ranks, or a rank and one before it, hold the same.

A sample is a gather of some values of each tensor, at equal distances, and no sweep over its bytes: what has drifted
apart differs nearly everywhere. A single value that differs, as after a flipped bit, is what replica_digests.py finds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import torch
import xxhash
from torch import Tensor

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ValueSample:
    """The sampled values of some tensors, which are read anew at each `digest`."""

    def __init__(self, tensors: Iterable[Tensor], values_each: int = 16) -> None:
        """Choose the values.

        Args:
            tensors: local and strided, in an order that is the same wherever the samples are compared.
            values_each: how many of each tensor are sampled, about; of one that has less than twice as many, all.
        """
        self._views: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for tensor in tensors:
            if tensor.numel():
                views = _sampled_views(tensor, values_each)
                self._views.setdefault((tensor.device, views[0].dtype), []).extend(views)

    def digest(self) -> int:
        """Hash the sampled values, as they are now. Waits for what is queued on a device. Returns 64 bits, unsigned."""
        found = xxhash.xxh3_64()
        for views in self._views.values():
            values = torch.cat(views).cpu()
            found.update(ctypes.string_at(values.data_ptr(), values.nbytes))
        return found.intdigest()


def _sampled_views(tensor: Tensor, values_each: int) -> list[Tensor]:
    """One-dimensional views of the sampled values, as integers: a NaN is compared bit for bit."""
    plain = torch.view_as_real(tensor.conj() if tensor.is_conj() else tensor) if tensor.is_complex() else tensor
    words = plain.view(_WORDS[plain.element_size()])
    distance = max(words.numel() // values_each, 1) | 1  # odd: a row has a power of two values, often
    if words.is_contiguous():
        return [words.view(-1)[::distance]]
    places = torch.arange(0, words.numel(), distance)
    return [words[tuple(place)].view(1) for place in torch.stack(torch.unravel_index(places, words.shape), 1).tolist()]
