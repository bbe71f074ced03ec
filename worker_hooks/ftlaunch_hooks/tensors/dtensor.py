"""Where a rank's shard of a DTensor lies. Imported only where DTensors are in use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.distributed.tensor import Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ftlaunch_hooks.tensors.json_codec import Path, StateError, show


@dataclass(frozen=True)
class ShardPlace:
    """The place of a rank's shard in the whole tensor."""

    offset: tuple[int, ...]
    first: bool  # whether this rank is the first of those that hold this shard


def place_of(path: Path, tensor: Any) -> ShardPlace | None:
    """Where this rank's shard of a DTensor lies; None when the rank is not in its mesh.

    Raises StateError for a placement that is neither a shard nor a replica (a pending sum).
    """
    coordinate = tensor.device_mesh.get_coordinate()
    for placement in tensor.placements:
        if placement.is_partial():
            raise StateError(f"cannot save `{show(path)}`: a DTensor with the placement {placement}")
    if coordinate is None:
        return None
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    first = all(
        at == 0 for at, placement in zip(coordinate, tensor.placements, strict=True) if isinstance(placement, Replicate)
    )
    return ShardPlace(tuple(offset), first)
