"""A few values of batches, by which the same batches are known again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_TENSORS, _VALUES = 8, 32


def sample_of(batches: Sequence[Any]) -> Tensor:
    """Of the first and last batch the first tensors: values at equal distances, and the sum of integers.

    Nothing here waits for a device.
    """
    ends = [batches[0], batches[-1]] if len(batches) > 1 else list(batches)
    picked = [_values(tensor) for batch in ends for tensor in list(_tensors(batch))[:_TENSORS] if tensor.numel()]
    found = torch.zeros(2 * _TENSORS * (_VALUES + 1), dtype=torch.float64, device=picked[0].device if picked else None)
    if picked:
        together = torch.cat(picked)
        found[: len(together)] = together
    return found


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two samples are alike, bit for bit."""
    return torch.equal(one.cpu().view(torch.int64), other.cpu().view(torch.int64))


def _values(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    flat = flat.abs() if flat.is_complex() else flat
    some = flat[:: max(1, flat.numel() // _VALUES)][:_VALUES].double()
    total = some.sum() if flat.is_floating_point() or flat.is_complex() else flat.sum().double()
    return torch.cat([some, total.reshape(1)])


def _tensors(batch: Any) -> Iterator[Tensor]:
    """Those whose values lie in rows: of sparse, nested, quantised and distributed ones nothing is looked at."""
    if isinstance(batch, Tensor):
        if batch.layout is torch.strided and not (batch.is_nested or batch.is_quantized or hasattr(batch, "to_local")):
            yield batch
    elif isinstance(batch, Mapping):
        for name in sorted(batch, key=str):
            yield from _tensors(batch[name])
    elif isinstance(batch, (list, tuple)):
        for one in batch:
            yield from _tensors(one)
