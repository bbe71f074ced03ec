"""A checkpoint that another number of ranks has saved: one rank's part of it, where all of them held the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.shared_keys import own_key
from ftlaunch_mindspore.saving.arrays import Array


def take_over(
    trees: Sequence[Mapping[str, Any]], arrays: Sequence[Mapping[str, Array]], rank: int, world_size: int
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the trees and arrays for a rank of a job with another number of ranks than have saved.

    Args:
        trees: of common.json, of each rank that has saved.
        arrays: of each rank that has saved, by its own keys.
        rank: of this job.
        world_size: of this job.

    Returns:
        Trees without random numbers where no rank of this number has saved any, and arrays by the keys of `rank`.

    Raises:
        Damaged: the ranks held different values, so that none of them holds all.
    """
    first = {_plain(key, 0): values for key, values in arrays[0].items()}
    for saver, held in enumerate(arrays):
        found = {_plain(key, saver): values for key, values in held.items()}
        for name in sorted(first.keys() | found.keys()):
            if name not in first or name not in found or not _same_bits(first[name], found[name]):
                raise Damaged(
                    f"{len(arrays)} ranks have saved it, and this job has {world_size}: ranks 0 and {saver} held"
                    f" different values of {name.partition('.')[2]}, so that none of them holds all; start it with"
                    f" {len(arrays)} ranks, or give --fresh to start over"
                )
    scales = [told["training"]["loss_scale"] for told in trees]
    if any(scale != scales[0] for scale in scales):
        raise Damaged(
            f"{len(trees)} ranks have saved it, and this job has {world_size}: they had different loss scales; start it"
            f" with {len(trees)} ranks, or give --fresh to start over"
        )
    chosen = trees[rank if rank < len(trees) else 0]
    training = dict(chosen["training"])
    parameters = {
        name: {"__tensor__": own_key(_plain(told["__tensor__"], rank if rank < len(trees) else 0), rank)}
        for name, told in training["parameters"].items()
    }
    training["parameters"] = parameters
    if rank >= len(trees):
        training["random"] = None
        training["data"] = {"seed": training["data"]["seed"], "generators": None}
    return {**chosen, "training": training}, {own_key(name, rank): values for name, values in first.items()}


def _plain(key: str, rank: int) -> str:
    """Return a key without the rank that has saved it as its own."""
    return key.removesuffix(own_key("", rank))


def _same_bits(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()
