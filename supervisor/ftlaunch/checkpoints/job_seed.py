"""The seed of a job: drawn once, and found again by every later start of the job."""

from __future__ import annotations

import secrets
from pathlib import Path

from ftlaunch_contract.checkpoint import layout, seeds
from ftlaunch_contract.checkpoint.initial import InitialCheckpoint


def settle(run_dir: Path, checkpoint_dir: Path, *, load: InitialCheckpoint | None, fresh: bool) -> int:
    """Return the job's seed, and have the run dir keep it.

    The checkpoints come first: the state that the job goes on from was made with their seed. Without checkpoints it is
    the run dir's, then that of the other job whose training is gone on with, and then a new one.

    Args:
        load: the checkpoint of another job that this job begins with.
        fresh: the job starts over: what it has kept does not count.

    Raises:
        OSError: the run dir cannot keep it.
    """
    found: int | None = None
    if not fresh:
        found = seeds.read(checkpoint_dir) if layout.list_iterations(checkpoint_dir) else None
        found = seeds.read(run_dir) if found is None else found
    if found is None and load is not None and not load.weights_only:
        found = _beside(load.path)
    if found is None:
        found = secrets.randbelow(seeds.MOST)
    seeds.keep(run_dir, found)
    return found


def _beside(checkpoint: Path) -> int | None:
    """The seed beside another job's checkpoint, or in the folder of its checkpoints."""
    in_folder = seeds.read(checkpoint)
    return seeds.read(checkpoint.parent) if in_folder is None else in_folder
