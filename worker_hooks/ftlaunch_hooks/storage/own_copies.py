"""Whether what each rank has saved for itself is the same, so that another number of ranks can go on with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ftlaunch_hooks.storage.saved_tensors import SavedTensors
from ftlaunch_hooks.tensors.dtypes import own_key
from ftlaunch_hooks.tensors.json_codec import StateError


def check_alike(what: str, saved: SavedTensors, named: Sequence[Collection[str]], ranks: int) -> None:
    """Raises StateError where the ranks that saved `what` had different tensors: `ranks` ranks cannot share them out.

    named: rank by rank, the keys that the rank's state names.
    """
    for key in sorted(set[str]().union(*named)):
        if not all(key in keys for keys in named) or not _copies_equal(saved, key):
            raise StateError(
                f"cannot restore {what} on {ranks} ranks: each of the {saved.world_size} ranks that saved it had a "
                f"state of its own (`{key}`, for one); start with {saved.world_size} ranks"
            )


def _copies_equal(saved: SavedTensors, key: str) -> bool:
    own = [own_key(key, rank) for rank in range(1, saved.world_size)]
    if not any(copy in saved for copy in own):
        return True  # one copy for all ranks, or shards
    return all(copy in saved and _equal(saved, key, copy) for copy in own)


def _equal(saved: SavedTensors, key: str, copy: str) -> bool:
    if key not in saved or saved.info(key) != saved.info(copy):
        return False
    return all(
        _bytes(one.tensor()).equal(_bytes(other.tensor()))
        for one, other in zip(saved.pieces(key), saved.pieces(copy), strict=True)
    )


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)
