"""Restoring a rank's state from where the job resumes."""

from __future__ import annotations

from pathlib import Path

from ftlaunch_contract.checkpoint import initial, layout, tensor_file
from ftlaunch_contract.protocol import Resume
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.storage.saved_tensors import CheckpointReader, MemoryReader, SavedTensors


def restore(state: RankState, kind: Resume, step: int, coordinator: Coordinator) -> SavedTensors | None:
    """Load `state` from memory or storage; returns what it was loaded from, or None where training begins at step 0.

    Raises json_codec.StateError when what is there does not fit, tensor_file.Damaged when it cannot be read.
    """
    if kind == Resume.MEMORY:
        slots = {rank: page.slot_steps().index(step) for rank, page in enumerate(coordinator.peers)}
        reader: SavedTensors = MemoryReader(coordinator.memory_dir, step, coordinator.world_size, slots)
    elif kind == Resume.STORAGE:
        reader = _open(layout.iteration_dir(coordinator.checkpoint_dir, step))
    elif kind in (Resume.LOADED, Resume.WEIGHTS):
        reader = _open(initial.checkpoint_at(coordinator.load_path, step))
    else:
        return None
    if kind == Resume.WEIGHTS:
        state.restore_weights(reader)
        return None
    state.restore(reader)
    return reader


def _open(directory: Path) -> CheckpointReader:
    try:
        return CheckpointReader(directory)
    except (tensor_file.Damaged, OSError) as problem:
        cause = problem.strerror if isinstance(problem, OSError) else problem
        raise tensor_file.Damaged(f"cannot restore from {directory}, which all ranks agreed on: {cause}") from problem
