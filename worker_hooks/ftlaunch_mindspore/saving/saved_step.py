"""Find and read the step from which a rank of a MindSpore training resumes.

KeptJob calls `find` and `find_weights` once, on the main thread, before training begins. The step lies in a snapshot
slot (in memory), in a checkpoint of the job, or in a checkpoint that the user named with --load.
"""

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
    """The state of one rank at one step."""

    step: int
    """number of completed steps"""
    trees: dict[str, Any]
    """the state's JSON part, by the names of attached objects (`network`, `training`)"""
    arrays: dict[str, Array]
    """values by the keys to which `trees` refer"""
    ranks: int
    """number of ranks that saved the step"""


def find(kind: Resume, step: int, coordinator: Coordinator) -> SavedStep | None:
    """Read this rank's state of the step from which training resumes.

    Args:
        kind: where the state lies.
        step: number of the step.
        coordinator: who decides for this rank.

    Returns:
        The state, or None for a training that begins at step 0.

    Raises:
        TrainingRefused: no checkpoint is usable, or the step cannot be read or is not of a MindSpore training.
    """
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
    """Read the weights with which a new training begins.

    Args:
        kind: where the state lies; only Resume.WEIGHTS means weights alone.
        step: number of the checkpoint of MindSpore Transformers.
        coordinator: who decides for this rank.

    Returns:
        The network's parameters by name, or None where training does not begin with weights alone.

    Raises:
        TrainingRefused: the weights cannot be read, or were not written by MindSpore Transformers.
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
    """Read this rank's state from a slot or from a checkpoint. Raises Damaged, OSError, ValueError."""
    rank = coordinator.rank
    world_size = coordinator.world_size
    if kind.in_memory:
        slot = layout.slot_dir(coordinator.memory_dir, rank, coordinator.page.slot_steps().index(step))
        files = [layout.slot_file(slot, group) for group in layout.GROUPS]
        return _read_files(slot, step=step, rank=rank, ranks=world_size, files=files)
    directory = layout.iteration_dir(coordinator.checkpoint_dir, step)
    if kind == Resume.LOADED:
        directory = initial.checkpoint_at(coordinator.load_path, step)
    metadata = verify.read_metadata(directory)
    savers: int = metadata["world_size"]
    wanted = [rank] if savers == world_size else range(savers)
    found = []
    for saver in wanted:
        files = _shards(directory, metadata, saver)
        found.append(_read_files(directory, step=step, rank=saver, ranks=savers, files=files))
    if savers == world_size:
        return found[0]
    trees, held = take_over(
        trees=[saved.trees for saved in found],
        arrays=[saved.arrays for saved in found],
        rank=rank,
        world_size=world_size,
    )
    return SavedStep(step=step, trees=trees, arrays=held, ranks=savers)


def _shards(directory: Path, metadata: Mapping[str, Any], rank: int) -> list[Path]:
    """Return the files of a checkpoint that `rank` saved."""
    return [directory / name for name in metadata["files"] if layout.is_shard_of(name, rank, metadata["world_size"])]


def _read_files(directory: Path, *, step: int, rank: int, ranks: int, files: list[Path]) -> SavedStep:
    """Read common.json of a slot or checkpoint and the tensor files of one rank."""
    common = json.loads((directory / layout.COMMON).read_bytes())
    if common["step"] != step:
        raise Damaged(f"{directory} is of step {common['step']}")
    found: dict[str, Array] = {}
    for path in files:
        found |= arrays.read(path)
    own = common.get("ranks", {}).get(str(rank), common["state"])  # a checkpoint lists the ranks whose trees differ
    return SavedStep(step=step, trees=own, arrays=found, ranks=ranks)
