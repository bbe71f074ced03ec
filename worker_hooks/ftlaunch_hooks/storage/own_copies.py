"""Compares what each rank has saved as its own, to decide whether another number of ranks can go on with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ftlaunch_contract.shared_keys import own_key
from ftlaunch_hooks.storage.saved_tensors import SavedTensors
from ftlaunch_hooks.tensors.json_codec import StateError


def check_alike(what: str, saved: SavedTensors, named: Sequence[Collection[str]], ranks: int) -> None:
    """Check that all ranks that saved `what` had equal tensors, so that another number of ranks can share them.

    Args:
        what: the object, for the message.
        saved: the checkpoint or snapshot.
        named: rank by rank, the keys that the rank's state names.
        ranks: the number of ranks that are to restore the object.

    Raises:
        StateError: the ranks had different tensors.
    """
    for key in sorted(set[str]().union(*named)):
        if not all(key in keys for keys in named) or not _copies_equal(saved, key):
            raise StateError(
                f"cannot restore {what} on {ranks} ranks: each of the {saved.world_size} ranks that saved it had a "
                f"state of its own (`{key}`, for one); start with {saved.world_size} ranks"
            )


def _copies_equal(saved: SavedTensors, key: str) -> bool:
    """Whether all ranks have saved the same under a key, also where groups of ranks have shared copies of it."""
    own = [own_key(key, rank) for rank in range(1, saved.world_size)]
    shared = list(saved.shared(key))
    if shared:
        return equal(saved, [*shared, *(copy for copy in (key, *own) if copy in saved)])
    return not any(copy in saved for copy in own) or equal(saved, [key, *own])


def equal(saved: SavedTensors, keys: Sequence[str]) -> bool:
    """Whether the same values were saved under all these keys, in the same pieces."""
    first, *others = keys
    return all(key in saved for key in keys) and all(_pair_equal(saved, first, other) for other in others)


def _pair_equal(saved: SavedTensors, key: str, copy: str) -> bool:
    if saved.info(key) != saved.info(copy):
        return False
    pieces = {piece.chunk.offset: piece for piece in saved.pieces(key)}
    others = {piece.chunk.offset: piece for piece in saved.pieces(copy)}
    return pieces.keys() == others.keys() and all(
        _bytes(piece.tensor()).equal(_bytes(others[offset].tensor())) for offset, piece in pieces.items()
    )


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)
