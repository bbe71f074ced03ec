"""Several trainings of one process, one after the other: where each has ended.

A script may attach again once a training is over, as one that fine-tunes what it has trained, or trains a model for
each fold. Steps are counted on. The end of a training is a checkpoint on storage, which is kept as long as a newer one
names it. A job that resumes in a later training passes the earlier ones: each is as it has ended, and makes no step.
They are told apart by words of the script's.
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

_SIGN = 10.0  # seconds between signs of life while a rank waits


def known_trainings(kind: Resume, step: int, coordinator: Coordinator) -> tuple[Trainings | None, SavedTensors | None]:
    """The trainings up to the one where this attempt resumes, None where training begins anew; and what says so.

    Raises AttachError where their ends are in another job's directory, tensor_file.Damaged where they cannot be read.
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
    """Which of the known trainings the script attaches that calls it `word`; `came`: those that it has attached before.

    A script may leave out what is over. Raises AttachError for a word that the job does not know.
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
    """Raises AttachError where a training of that word has begun in this process."""
    if word in came:
        raise AttachError(
            f"cannot attach again: {_called(word)} has begun in this process before; give each further one a word of"
            ' its own, as in attach(training="tune"): by it a job that resumes knows which one the script has come to'
        )


def _called(word: str) -> str:
    return f"the training {word!r}" if word else "the training without a word"


def name_of(trainings: Trainings) -> str:
    """The last of these in a sentence."""
    word = trainings.words[-1]
    return f"training {len(trainings.words)}" + (f" ({word})" if word else "")


def end_directory(trainings: Trainings, end: int, coordinator: Coordinator) -> Path:
    """The checkpoint of the end of the last of `trainings`, verified. Raises AttachError where it cannot be used."""
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
