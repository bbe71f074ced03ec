"""Where a rank's shard of a DTensor lies in the whole tensor. Imported only where DTensors are in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
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
    first: bool  # whether this rank is the first on its node of the ranks that hold this shard
    key: str  # the tensor's key; names the ranks of the mesh unless these are all ranks of the job
    is_replica: bool  # whether every rank of the job holds the whole tensor


def place_of(path: Path, key: str, tensor: Any, node: NodeRanks) -> ShardPlace | None:
    """Return the place of this rank's shard of a DTensor; None if the rank is not in its mesh.

    Args:
        path: the tensor's path, for the message.
        key: the tensor's key without ranks.
        tensor: the DTensor.
        node: the ranks of this rank's node.

    Raises:
        StateError: a placement is neither a shard nor a replica, but a pending sum.
    """
    coordinate = tensor.device_mesh.get_coordinate()
    for placement in tensor.placements:
        if placement.is_partial():
            raise StateError(f"cannot save `{show(path)}`: a DTensor with the placement {placement}")
    if coordinate is None:
        return None
    is_everywhere = tensor.device_mesh.size() == node.world_size
    return ShardPlace(
        offset=offset_of(tensor),
        first=_is_first(tensor, coordinate, node),
        key=key if is_everywhere else shared_key(key, ranks_of(tensor)),
        is_replica=is_everywhere and all(_replicated_dimensions(tensor)),
    )


def is_outside(tensor: Any) -> bool:
    """Whether this rank is not in the mesh of a DTensor, and so holds nothing of it."""
    return tensor.device_mesh.get_coordinate() is None


def ranks_of(tensor: Any) -> list[int]:
    """Return the ranks of a DTensor's mesh, which share the tensor."""
    ranks: list[int] = tensor.device_mesh.mesh.flatten().tolist()
    return ranks


def holders_of(tensor: Any, node: NodeRanks) -> tuple[tuple[int, ...], ...] | None:
    """Return for each shard of a DTensor that ranks of this node hold which of them do.

    The answer is the same on all ranks of the node that are in the tensor's mesh. None: no two ranks of the node hold
    the same shard, or this rank is not in the mesh.
    """
    if is_outside(tensor):
        return None
    return _holders_on(tensor.device_mesh, _replicated_dimensions(tensor), node)


@lru_cache(maxsize=64)  # all tensors of a model have the same few meshes and placements
def _holders_on(device_mesh: Any, alike: tuple[bool, ...], node: NodeRanks) -> tuple[tuple[int, ...], ...] | None:
    order = sorted(range(len(alike)), key=lambda dimension: alike[dimension])
    count = prod(device_mesh.mesh.shape[dimension] for dimension, one in enumerate(alike) if not one)
    shards = device_mesh.mesh.permute(order).reshape(count, -1).tolist()
    here = [tuple(sorted(rank for rank in holders if rank in node.ranks)) for holders in shards]
    found = tuple(holders for holders in here if holders)
    return found if any(len(holders) > 1 for holders in found) else None


def _replicated_dimensions(tensor: Any) -> tuple[bool, ...]:
    """Return for each dimension of a DTensor's mesh whether the tensor is replicated along it."""
    return tuple(isinstance(placement, Replicate) for placement in tensor.placements)


def offset_of(tensor: Any) -> tuple[int, ...]:
    """Return where this rank's shard of a DTensor begins in the whole tensor."""
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(offset)


def _is_first(tensor: Any, coordinate: Sequence[int], node: NodeRanks) -> bool:
    replicated = _replicated_dimensions(tensor)
    if node.whole_job:
        return all(index == 0 for index, is_replicated in zip(coordinate, replicated, strict=True) if is_replicated)
    mesh = tensor.device_mesh.mesh
    holders = mesh[
        tuple(
            slice(None) if is_replicated else index for index, is_replicated in zip(coordinate, replicated, strict=True)
        )
    ]
    here = [rank for rank in holders.flatten().tolist() if rank in node.ranks]
    return bool(here[0] == mesh[tuple(coordinate)].item())
