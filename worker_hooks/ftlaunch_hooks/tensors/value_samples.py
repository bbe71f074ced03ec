"""A small sample of tensors' values, to tell whether several ranks hold the same.

A sample is a gather of at most 17 values a tensor, at equal distances, and no sweep over its bytes: what has drifted
apart differs nearly everywhere. A single value that differs, as after a flipped bit, is what replica_digests.py finds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import torch
import xxhash
from torch import Tensor

_VALUES = 16  # of a tensor, or one more
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ValueSample:
    """The sampled values of some tensors, which are read anew at each `digest`."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """tensors: local and strided, in an order that is the same on all ranks."""
        self._views: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for tensor in tensors:
            if tensor.numel():
                views = _sampled_views(tensor)
                self._views.setdefault((tensor.device, views[0].dtype), []).extend(views)

    def digest(self) -> int:
        """Hash the sampled values, as they are now. Waits for what is queued on a device. Returns 64 bits, unsigned."""
        found = xxhash.xxh3_64()
        for views in self._views.values():
            values = torch.cat(views).cpu()
            found.update(ctypes.string_at(values.data_ptr(), values.nbytes))
        return found.intdigest()


def _sampled_views(tensor: Tensor) -> list[Tensor]:
    """One-dimensional views of the sampled values, as integers: a NaN is compared bit for bit."""
    plain = torch.view_as_real(tensor.conj() if tensor.is_conj() else tensor) if tensor.is_complex() else tensor
    words = plain.view(_WORDS[plain.element_size()])
    distance = max(words.numel() // _VALUES, 1) | 1  # odd: a row has a power of two values, often
    if words.is_contiguous():
        return [words.view(-1)[::distance]]
    places = torch.arange(0, words.numel(), distance)
    return [words[tuple(place)].view(1) for place in torch.stack(torch.unravel_index(places, words.shape), 1).tolist()]
