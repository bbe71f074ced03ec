"""Restoring a rank's state from where the job resumes."""

from __future__ import annotations

from ftlaunch_hooks import layout
from ftlaunch_hooks.overseer import Overseer
from ftlaunch_hooks.protocol import Resume
from ftlaunch_hooks.shards import CheckpointReader, MemoryReader, Shards
from ftlaunch_hooks.state import State


def restore(state: State, kind: Resume, step: int, overseer: Overseer) -> Shards | None:
    """Load `state` from memory or storage; returns what it was read from, None for a fresh start.

    Raises state.StateError when what is there does not fit, layout.Damaged when it cannot be read.
    """
    if kind == Resume.MEMORY:
        slots = {rank: page.slot_steps().index(step) for rank, page in enumerate(overseer.peers)}
        reader: Shards = MemoryReader(overseer.memory_dir, step, overseer.world_size, slots)
    elif kind == Resume.STORAGE:
        reader = CheckpointReader(layout.iteration_dir(overseer.checkpoint_dir, step))
    else:
        return None
    state.restore(reader)
    return reader
