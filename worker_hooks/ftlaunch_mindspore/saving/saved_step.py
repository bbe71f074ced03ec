"""What an earlier attempt has saved of a training of MindSpore's, in memory or on storage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import initial, layout, verify
from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.foreign_formats import Format
from ftlaunch_contract.protocol import Resume
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_mindspore.refusal import TrainingRefused
from ftlaunch_mindspore.saving import arrays, initial_weights
from ftlaunch_mindspore.saving.arrays import Array
from ftlaunch_mindspore.saving.other_ranks import take_over

KIND = "mindspore"  # of the object `training` in common.json


@dataclass(frozen=True)
class SavedStep:
    """One step, as a rank has saved it."""

    step: int
    trees: dict[str, Any]
    arrays: dict[str, Array]
    ranks: int
    """so many have saved it"""


def find(kind: Resume, step: int, coordinator: Coordinator) -> SavedStep | None:
    """What training goes on from; None where it begins anew. Raises TrainingRefused."""
    if kind == Resume.REFUSED:
        raise TrainingRefused(
            f"cannot resume: no checkpoint in {coordinator.checkpoint_dir} is usable (see its quarantine/);"
            f" {protocol.ENV_FRESH}=1 starts over"
        )
    if kind in (Resume.FRESH, Resume.WEIGHTS):
        return None
    try:
        found = _read(kind, step, coordinator)
    except (Damaged, OSError, ValueError) as problem:
        raise TrainingRefused(f"cannot restore step {step}: {problem}") from problem
    if found.trees.get("training", {}).get("kind") != KIND:
        raise TrainingRefused(f"cannot restore step {step}: it is not of a training of MindSpore's")
    return found


def find_weights(kind: Resume, step: int, coordinator: Coordinator) -> dict[str, Array] | None:
    """What the parameters of the network begin with; None where it is not weights alone. Raises TrainingRefused.

    step: the number of the checkpoint of MindSpore Transformers.
    """
    if kind != Resume.WEIGHTS:
        return None
    path = coordinator.load_path
    if initial.foreign_format(path, step) is not Format.MINDSPORE:
        raise TrainingRefused(
            f"cannot begin with the weights of {path} alone: a training of MindSpore's goes on from all of a"
            " checkpoint, or takes the weights of one of MindSpore Transformers; load others in the script, by"
            " mindspore.load_checkpoint()"
        )
    try:
        return initial_weights.read(initial.foreign_at(path, step)[1])
    except (Damaged, OSError) as problem:
        raise TrainingRefused(f"cannot load weights from {path}: {problem}") from problem


def _read(kind: Resume, step: int, coordinator: Coordinator) -> SavedStep:
    """Raises Damaged, OSError, ValueError."""
    rank, world_size = coordinator.rank, coordinator.world_size
    if kind.in_memory:
        slot = layout.slot_dir(coordinator.memory_dir, rank, coordinator.page.slot_steps().index(step))
        return _join(slot, step, rank, world_size, [layout.slot_file(slot, group) for group in layout.GROUPS])
    directory = layout.iteration_dir(coordinator.checkpoint_dir, step)
    if kind == Resume.LOADED:
        directory = initial.checkpoint_at(coordinator.load_path, step)
    metadata = verify.read_metadata(directory)
    savers: int = metadata["world_size"]
    wanted = [rank] if savers == world_size else range(savers)
    found = [_join(directory, step, saver, savers, _shards(directory, metadata, saver)) for saver in wanted]
    if savers == world_size:
        return found[0]
    trees, held = take_over([one.trees for one in found], [one.arrays for one in found], rank, world_size)
    return SavedStep(step, trees, held, savers)


def _shards(directory: Path, metadata: Mapping[str, Any], rank: int) -> list[Path]:
    """Return the files of a checkpoint that a rank has saved."""
    return [directory / name for name in metadata["files"] if layout.is_shard_of(name, rank, metadata["world_size"])]


def _join(directory: Path, step: int, rank: int, ranks: int, files: list[Path]) -> SavedStep:
    common = json.loads((directory / layout.COMMON).read_bytes())
    if common["step"] != step:
        raise Damaged(f"{directory} is of step {common['step']}")
    found: dict[str, Array] = {}
    for path in files:
        found |= arrays.read(path)
    own = common.get("ranks", {}).get(str(rank), common["state"])  # of a checkpoint: where ranks differ
    return SavedStep(step, own, found, ranks)
