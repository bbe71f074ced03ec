"""Several trainings of one process, one after the other: where each has ended.

A script may attach again once a training is over, as one that fine-tunes what it has trained, or trains a model for
each fold. Steps are counted on. The end of a training is a checkpoint on storage, which is kept as long as a newer one
names it. A job that resumes in a later training passes the earlier ones: each is as it has ended, and makes no step.
"""

from __future__ import annotations

import time
from pathlib import Path

from ftlaunch_contract.checkpoint import layout, tensor_file, verify
from ftlaunch_contract.checkpoint.metadata import training_ends
from ftlaunch_contract.files import checksums
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.protocol import Resume, Why
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.job.restore import AttachError, open_step
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.storage.saved_tensors import SavedTensors

_SIGN = 10.0  # seconds between signs of life while a rank waits


def ends_of(kind: Resume, step: int, coordinator: Coordinator) -> tuple[list[int], SavedTensors | None]:
    """The steps at which the trainings ended that lie before the one where this attempt resumes; and what says so.

    Raises AttachError where their ends are in another job's directory, tensor_file.Damaged where they cannot be read.
    """
    saved = None if kind == Resume.WEIGHTS else open_step(kind, step, coordinator)
    ends = [] if saved is None else saved.training_ends
    if ends and kind == Resume.LOADED:
        raise AttachError(
            f"cannot begin with step {step} of another job: it is of training {len(ends) + 1} of its process, and the"
            " ends of those before are not in this job; give its step"
            f" {ends[0]} or one before, or take the weights alone (resume_training: false)"
        )
    return ends, saved


def end_directory(number: int, ends: list[int], coordinator: Coordinator) -> Path:
    """The checkpoint of the end of training `number`, verified. Raises AttachError where it cannot be used."""
    directory = layout.iteration_dir(coordinator.checkpoint_dir, ends[number])
    try:
        if training_ends(verify.verify(directory)) != ends[:number]:
            raise tensor_file.Damaged("it is that of another run of the job")
    except (tensor_file.Damaged, OSError) as error:
        raise AttachError(
            f"cannot resume: the end of training {number + 1} of this process, {directory}, cannot be used ({error});"
            " training goes on in a later one, which begins with that; give --fresh to start over"
        ) from error
    return directory


def keep_end(step: int, snapshots: Snapshotter, coordinator: Coordinator) -> None:
    """Wait until the end of a training, at `step`, is on storage. Raises AttachError where it does not come there."""
    directory = layout.iteration_dir(coordinator.checkpoint_dir, step)
    page, orders = coordinator.page, coordinator.orders
    if page.save_step != step:  # no step was made since this process has resumed
        if verify.is_complete(directory):
            return
        page.hold_for_saver(step, Why.END)
        coordinator.held(snapshots, step, Why.END)
        coordinator.finish()

    def is_over() -> bool:
        return orders.saved >= step or page.leave or snapshots.budget.progress.any_missed(step)

    while not wait_until(is_over, time.monotonic() + _SIGN):
        page.touch(time.monotonic_ns())
    coordinator.at_boundary(step)
    if not _is_saved(directory, step, snapshots, coordinator):
        raise AttachError(
            f"cannot attach again: the training before has ended at step {step}, and that step could not be saved to"
            f" {coordinator.checkpoint_dir}; a job that is to resume in this training needs it"
        )


def _is_saved(directory: Path, step: int, snapshots: Snapshotter, coordinator: Coordinator) -> bool:
    """Whether a checkpoint has this rank's snapshot of `step`, and not that of an earlier life of the job."""
    try:
        saved = verify.examine(directory)["files"]
        files, _ = snapshots.slot_files(step)
    except (tensor_file.Damaged, OSError):
        return False
    except LookupError:  # it was held on storage, for want of memory
        return True
    for group, fd in files.items():
        name = layout.shard_name("", group, coordinator.rank, coordinator.world_size)
        _, _, size = tensor_file.read_header(fd)
        here = [checksums.of_block(fd, begin, end) for begin, end in checksums.blocks(size)]
        if any(entry[checksums.NAME] != here for known, entry in saved.items() if known.endswith(name)):
            return False
    return True
