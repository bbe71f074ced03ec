"""Samples a few values of batches, by which the same batches are recognized."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_TENSORS = 8  # sampled in a batch
_VALUES = 32  # sampled in a tensor


def sample_of(batches: Sequence[Any]) -> Tensor:
    """Sample the first tensors of the first and the last batch: values at equal distances, and a sum for each tensor.

    The sum is over all values of integers, and over the sampled values of floats. Nothing here waits for a device.

    Returns:
        float64 values, always of the same number.
    """
    ends = [batches[0], batches[-1]] if len(batches) > 1 else list(batches)
    picked = [_values(tensor) for batch in ends for tensor in list(_tensors(batch))[:_TENSORS] if tensor.numel()]
    sample = torch.zeros(2 * _TENSORS * (_VALUES + 1), dtype=torch.float64, device=picked[0].device if picked else None)
    if picked:
        values = torch.cat(picked)
        sample[: len(values)] = values
    return sample


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two samples are equal, bit for bit."""
    return torch.equal(one.cpu().view(torch.int64), other.cpu().view(torch.int64))


def _values(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    flat = flat.abs() if flat.is_complex() else flat
    sampled = flat[:: max(1, flat.numel() // _VALUES)][:_VALUES].double()
    total = sampled.sum() if flat.is_floating_point() or flat.is_complex() else flat.sum().double()
    return torch.cat([sampled, total.reshape(1)])


def _tensors(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, except sparse, nested, quantized and distributed ones."""
    if isinstance(batch, Tensor):
        if batch.layout is torch.strided and not (batch.is_nested or batch.is_quantized or hasattr(batch, "to_local")):
            yield batch
    elif isinstance(batch, Mapping):
        for name in sorted(batch, key=str):
            yield from _tensors(batch[name])
    elif isinstance(batch, (list, tuple)):
        for entry in batch:
            yield from _tensors(entry)
