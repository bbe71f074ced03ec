"""Where a rank's shard of a DTensor lies. Imported only where DTensors are in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.distributed.tensor import Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ftlaunch_contract.node_ranks import NodeRanks
from ftlaunch_contract.shared_keys import shared_key
from ftlaunch_hooks.tensors.json_codec import Path, StateError, show


@dataclass(frozen=True)
class ShardPlace:
    """The place of a rank's shard in the whole tensor."""

    offset: tuple[int, ...]
    first: bool  # whether this rank is the first on its node of those that hold this shard
    key: str  # names the ranks of its mesh where they are not all of the job's


def place_of(path: Path, key: str, tensor: Any, node: NodeRanks) -> ShardPlace | None:
    """Where this rank's shard of a DTensor lies; None when the rank is not in its mesh.

    Raises StateError for a placement that is neither a shard nor a replica (a pending sum).
    """
    coordinate = tensor.device_mesh.get_coordinate()
    for placement in tensor.placements:
        if placement.is_partial():
            raise StateError(f"cannot save `{show(path)}`: a DTensor with the placement {placement}")
    if coordinate is None:
        return None
    if tensor.device_mesh.size() < node.world_size:
        key = shared_key(key, ranks_of(tensor))
    return ShardPlace(offset_of(tensor), _is_first(tensor, coordinate, node), key)


def is_outside(tensor: Any) -> bool:
    """Whether this rank is not in the mesh of a DTensor: it holds nothing of it."""
    return tensor.device_mesh.get_coordinate() is None


def ranks_of(tensor: Any) -> list[int]:
    """The ranks that share a DTensor out among them."""
    ranks: list[int] = tensor.device_mesh.mesh.flatten().tolist()
    return ranks


def offset_of(tensor: Any) -> tuple[int, ...]:
    """Where this rank's shard of a DTensor begins in the whole."""
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(offset)


def _is_first(tensor: Any, coordinate: Sequence[int], node: NodeRanks) -> bool:
    replicated = [isinstance(placement, Replicate) for placement in tensor.placements]
    if node.whole_job:
        return all(at == 0 for at, alike in zip(coordinate, replicated, strict=True) if alike)
    mesh = tensor.device_mesh.mesh
    holders = mesh[tuple(slice(None) if alike else at for at, alike in zip(coordinate, replicated, strict=True))]
    here = [rank for rank in holders.flatten().tolist() if rank in node.ranks]
    return bool(here[0] == mesh[tuple(coordinate)].item())
