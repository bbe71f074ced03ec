"""Handles several trainings of one process, one after the other, and the checkpoints of their ends.

A script may attach again once a training is over, for example to fine-tune what it has trained, or to train a model for
each fold. Steps are counted on. The end of a training is a checkpoint on storage, which is kept as long as a newer
checkpoint names it. A job that resumes in a later training passes the earlier trainings: each is restored as it has
ended, and makes no step. Words that the script gives tell the trainings apart. attach() calls these functions in the
thread that trains.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from ftlaunch_contract.checkpoint import layout, metadata, tensor_file, verify
from ftlaunch_contract.checkpoint.metadata import Trainings
from ftlaunch_contract.files import checksums
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.protocol import Resume, Why
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.job.restore import AttachError, open_step
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.storage.saved_tensors import SavedTensors

_BEAT_SECONDS = 10.0  # between heartbeats while a rank waits


def known_trainings(kind: Resume, step: int, coordinator: Coordinator) -> tuple[Trainings | None, SavedTensors | None]:
    """Return the trainings that the saved step knows.

    Args:
        kind: where the state comes from.
        step: the step at which this attempt resumes.
        coordinator: this rank's coordinator.

    Returns:
        The trainings up to the one in which this attempt resumes (None if training starts at its beginning, or from
        another job's step), and the saved state (None if there is none).

    Raises:
        AttachError: the ends of the trainings are in another job's directory.
        Damaged: the saved state cannot be read.
    """
    saved = None if kind == Resume.WEIGHTS else open_step(kind, step, coordinator)
    if saved is None:
        return None, None
    if kind == Resume.LOADED:
        if ends := saved.trainings.ends:
            raise AttachError(
                f"cannot begin with step {step} of another job: it is of training {len(ends) + 1} of its process, and"
                " the ends of those before are not in this job; give its step"
                f" {ends[0]} or one before, or take the weights alone (resume_training: false)"
            )
        return None, saved
    return saved.trainings, saved


def place_of(word: str, known: Trainings, came: Collection[str]) -> int:
    """Return the index of the training `word` among the known trainings.

    A script may leave out trainings that are over.

    Args:
        word: the word that the script gives.
        known: the trainings of the job.
        came: the words of trainings that the script has attached before in this process.

    Raises:
        AttachError: the job does not know the word, or the script has attached it before.
    """
    check_other(word, came)
    if word not in known.words:
        raise AttachError(
            f"cannot attach {_called(word)}: the job has been in {', '.join(map(_called, known.words))}, and goes on in"
            " the last of these; attach it under the word that it had (attach(training=...)), in the order of the first"
            " run, or give --fresh to start over"
        )
    return known.words.index(word)


def check_other(word: str, came: Collection[str]) -> None:
    """Check that no training of this word has begun in this process. Raises AttachError."""
    if word in came:
        raise AttachError(
            f"cannot attach again: {_called(word)} has begun in this process before; give each further one a word of"
            ' its own, as in attach(training="tune"): by it a job that resumes knows which one the script has come to'
        )


def _called(word: str) -> str:
    return f"the training {word!r}" if word else "the training without a word"


def name_of(trainings: Trainings) -> str:
    """Return the name of the last of these trainings, for a sentence."""
    word = trainings.words[-1]
    return f"training {len(trainings.words)}" + (f" ({word})" if word else "")


def end_directory(trainings: Trainings, end: int, coordinator: Coordinator) -> Path:
    """Return the checkpoint at the end of the last training, after it was verified.

    Args:
        trainings: the trainings up to the one that has ended.
        end: the step at which it has ended.
        coordinator: this rank's coordinator.

    Raises:
        AttachError: the checkpoint cannot be used.
    """
    directory = layout.iteration_dir(coordinator.checkpoint_dir, end)
    try:
        if metadata.trainings(verify.verify(directory)) != trainings:
            raise tensor_file.Damaged("it is that of another run of the job")
    except (tensor_file.Damaged, OSError) as error:
        raise AttachError(
            f"cannot resume: the end of {name_of(trainings)} of this process, {directory}, cannot be used ({error});"
            " training goes on in a later one, which begins with that; give --fresh to start over"
        ) from error
    return directory


def keep_end(step: int, snapshots: Snapshotter, coordinator: Coordinator) -> None:
    """Wait until the end of a training, at `step`, is on storage. Raises AttachError if it cannot be saved."""
    directory = layout.iteration_dir(coordinator.checkpoint_dir, step)
    page = coordinator.page
    orders = coordinator.orders
    if page.save_step != step:  # no step was made since this process has resumed
        if verify.is_complete(directory):
            return
        page.hold_for_saver(step, Why.END)
        coordinator.held(snapshots, step, Why.END)
        coordinator.finish()

    def is_over() -> bool:
        return orders.saved >= step or page.leave or snapshots.budget.progress.any_missed(step)

    while not wait_until(is_over, time.monotonic() + _BEAT_SECONDS):
        page.touch(time.monotonic_ns())
    coordinator.at_boundary(step)
    if not _is_saved(directory, step=step, snapshots=snapshots, coordinator=coordinator):
        raise AttachError(
            f"cannot attach again: the training before has ended at step {step}, and that step could not be saved to"
            f" {coordinator.checkpoint_dir}; a job that is to resume in this training needs it"
        )


def _is_saved(directory: Path, step: int, snapshots: Snapshotter, coordinator: Coordinator) -> bool:
    """Return whether a checkpoint holds this rank's present snapshot of `step`, and not that of an earlier run."""
    try:
        saved = verify.examine(directory)["files"]
        files, _ = snapshots.slot_files(step)
    except (tensor_file.Damaged, OSError):
        return False
    except LookupError:  # for lack of memory the snapshot was on storage
        return True
    for group, fd in files.items():
        name = layout.shard_name("", group, coordinator.rank, coordinator.world_size)
        _, _, size = tensor_file.read_header(fd)
        own_checksums = [checksums.of_block(fd, begin, end) for begin, end in checksums.blocks(size)]
        for file_name, entry in saved.items():
            if file_name.endswith(name) and entry[checksums.NAME] != own_checksums:
                return False
    return True
