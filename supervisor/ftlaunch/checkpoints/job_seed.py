"""The random seed of a job, drawn once and found again by every later start of the job.

`engine/workspace.py` settles the seed before any rank is started.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from ftlaunch_contract.checkpoint import layout, seeds
from ftlaunch_contract.checkpoint.initial import InitialCheckpoint


def settle(
    run_dir: Path, checkpoint_dir: Path, *, load: InitialCheckpoint | None, fresh: bool, is_stored: bool = False
) -> int:
    """Return the job's seed, and write the seed into the run dir.

    The seed of the job's checkpoints comes first, because the state that the job continues was made with this seed.
    Then come the seed of the run dir, the seed of the other job whose training is continued, and a new seed.

    Args:
        run_dir: run dir of the job.
        checkpoint_dir: checkpoint directory of the job.
        load: the checkpoint of another job that this job begins with; None: there is none.
        fresh: whether the job starts over, so that the seeds of its checkpoints and run dir do not count.
        is_stored: whether the job has checkpoints beside those in the checkpoint directory.

    Raises:
        OSError: the seed cannot be written.
    """
    found: int | None = None
    if not fresh:
        found = seeds.read(checkpoint_dir) if is_stored or layout.list_iterations(checkpoint_dir) else None
        found = seeds.read(run_dir) if found is None else found
    if found is None and load is not None and not load.weights_only:
        found = _seed_beside(load.path)
    if found is None:
        found = secrets.randbelow(seeds.MOST)
    seeds.keep(run_dir, found)
    return found


def _seed_beside(checkpoint: Path) -> int | None:
    """Return the seed that another job has left in a checkpoint, or in the folder of its checkpoints."""
    in_folder = seeds.read(checkpoint)
    return seeds.read(checkpoint.parent) if in_folder is None else in_folder
