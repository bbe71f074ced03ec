"""Give a rank its state from a checkpoint that was saved by another number of ranks.

This is possible only where all ranks that saved held the same values (plain data parallelism). Everything here is
pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.shared_keys import own_key
from ftlaunch_mindspore.saving.arrays import Array


def take_over(
    trees: Sequence[Mapping[str, Any]], arrays: Sequence[Mapping[str, Array]], rank: int, world_size: int
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the trees and arrays for a rank of a job whose number of ranks differs from that of the checkpoint.

    Args:
        trees: the trees of common.json, one for each rank that saved.
        arrays: the arrays by key, one mapping for each rank that saved.
        rank: this process's rank in the present job.
        world_size: number of ranks of the present job.

    Returns:
        The trees, without random numbers for a rank that no rank of the checkpoint corresponds to, and the arrays by
        the keys of `rank`.

    Raises:
        Damaged: the ranks that saved held different values, so that no rank's state stands for the others'.
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
    scales = [tree["training"]["loss_scale"] for tree in trees]
    if any(scale != scales[0] for scale in scales):
        raise Damaged(
            f"{len(trees)} ranks have saved it, and this job has {world_size}: they had different loss scales; start it"
            f" with {len(trees)} ranks, or give --fresh to start over"
        )
    saver = rank if rank < len(trees) else 0
    training = dict(trees[saver]["training"])
    training["parameters"] = {
        name: {"__tensor__": own_key(_plain(reference["__tensor__"], saver), rank)}
        for name, reference in training["parameters"].items()
    }
    if rank >= len(trees):
        training["random"] = None
        training["data"] = {"seed": training["data"]["seed"], "generators": None}
    own_arrays = {own_key(name, rank): values for name, values in first.items()}
    return {**trees[saver], "training": training}, own_arrays


def _plain(key: str, rank: int) -> str:
    """Return a key without the suffix that marks it as the own key of `rank`."""
    return key.removesuffix(own_key("", rank))


def _same_bits(left: Array, right: Array) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and left.tobytes() == right.tobytes()
