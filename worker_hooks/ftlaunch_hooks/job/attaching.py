"""The public face of the hooks: attach(), and resuming() and peek() before it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Collection, Mapping
from types import FrameType
from typing import Any

from ftlaunch_contract.checkpoint.metadata import Trainings
from ftlaunch_contract.protocol import EXIT_GIVEN_UP, Resume
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.job.job import Job
from ftlaunch_hooks.job.passed_training import PassedTraining
from ftlaunch_hooks.job.restore import AttachError, check_usable, open_step, saved_object
from ftlaunch_hooks.job.script_end import at_ordinary_end
from ftlaunch_hooks.job.supervised import Supervised
from ftlaunch_hooks.job.trainings import check_other, end_directory, known_trainings, place_of
from ftlaunch_hooks.observe import optimizer_steps
from ftlaunch_hooks.process import bootstrap, error_file
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.standalone import standalone
from ftlaunch_hooks.state.random_numbers import generators
from ftlaunch_hooks.state.state import Choices
from ftlaunch_hooks.storage.saved_tensors import SavedTensors
from ftlaunch_hooks.tensors.json_codec import StateError
from ftlaunch_hooks.tensors.replicated import Said

_coordinator: Coordinator | None = None
_job: Job | None = None
_looked_at: dict[str, tuple[int, SavedTensors | None]] = {}  # by word: what peek() has opened, until attach()
_begins_at: dict[str, int] = {}  # by word: the step at which begin_at() has a training begin, until attach()
_passed: dict[str, PassedTraining] = {}  # by word: trainings that the job has behind it, and the script has come to


def attach(
    *,
    frozen: Collection[str] = (),
    replicated: Said = (),
    anew: Mapping[str, str] | None = None,
    training: str = "",
    stands_for: int | None = None,
    keep: bool = True,
    ignore: Collection[str] = (),
    **objects: Any,
) -> Job:
    """Take part in the job: restore `objects` where an earlier attempt left them, and keep them safe.

    objects: under any name, anything with state_dict() and load_state_dict(): models (DDP-wrapped too), optimizers,
    schedulers, scalers, samplers; and random number generators. Generators among the caller's variables are saved
    without being given. frozen: names of objects that are never saved nor restored. replicated: names of modules whose
    parameters another wrapper than DistributedDataParallel keeps equal on all ranks, and of optimizers that step all of
    theirs on every rank: one rank saves them for all. Where only some of the ranks keep them equal (beside tensor or
    pipeline parallelism those of a data-parallel group), a mapping: name -> a function that gives, for a parameter,
    these ranks by their numbers in the job. anew: name of an object -> a word of the script's; what was saved of it
    under another word, or none, is not restored: new data, or a new schedule at the old position.
    Call it after everything is built; and again, once the training is over, for another one. training: a word by which
    a job that resumes tells several trainings of one script apart (trainings.py). stands_for: a rank of the job that
    saved, where their number was another one: this rank takes what that one has saved as its own, its random numbers
    too, and the script vouches that it may. Where as many ranks have saved, it is not looked at. keep: whether
    variables that the training loop changes, and that nobody else saves, are saved and put back. ignore: names of
    variables that need not be: they are neither kept nor spoken of (`history`, `self.meter`).
    Raises StateError naming the argument that cannot be saved or does not fit what is restored, and AttachError.
    """
    coordinator = _join("attach", "attach")
    _check_named(objects, frozen=frozen, replicated=replicated)
    optimizer_steps.stop()
    if isinstance(ignore, str):
        raise AttachError(f"cannot attach: ignore is the text {ignore!r}; give a list of names, as in [{ignore!r}]")
    choices = Choices(
        frozen=frozen,
        replicated=replicated,
        anew=anew or {},
        training=training,
        stands_for=stands_for,
        keep=keep,
        ignore=ignore,
    )
    _looked_at.clear()
    caller = sys._getframe(1)
    is_asked_by_script = not caller.f_globals["__name__"].startswith("ftlaunch_hooks.")
    found = generators.find(_caller(), objects)
    if _job is not None:
        check_other(training, _job._trainings.words)
        _job._attach_again(objects, choices, found)
        return _job
    job = _attach_first(objects, choices, coordinator, found)
    if is_asked_by_script:
        job._watch_beginning(caller)
    return job


def _attach_first(objects: dict[str, Any], choices: Choices, coordinator: Coordinator, found: Mapping[str, Any]) -> Job:
    """Of this process: the training where the job is, or one that it has behind it."""
    global _job  # noqa: PLW0603 - one process is one rank
    known, saved = known_trainings(*coordinator.resume(), coordinator)
    trainings = known or Trainings(words=(choices.training,))
    number = place_of(choices.training, trainings, _passed)
    begins_at = _begins_at.pop(choices.training, None)
    if number < len(trainings.ends):
        if begins_at is not None:
            raise AttachError(
                f"cannot begin at step {begins_at}: the job has this training behind it, and goes on in a later one;"
                " give --fresh to start over"
            )
        if not _passed:
            at_ordinary_end(_check_reached)
        one = PassedTraining(objects, choices, coordinator, found, trainings.up_to(number), trainings.ends[number])
        return _passed.setdefault(choices.training, one)
    _job = Job(objects, choices, coordinator, found, trainings, saved, begins_at)
    return _job


def _check_named(objects: Collection[str], **options: Collection[str]) -> None:
    """Raises AttachError where an option names no object."""
    for option, names in options.items():
        if unknown := sorted(set(names) - set(objects)):
            raise AttachError(f"cannot attach: {option} names {unknown[0]!r}, which is none of {sorted(objects)}")


def _check_reached(_ends_well: bool) -> None:
    """The script ends. One that has not come to the training where the job is has trained nothing: that is no end."""
    if _job is not None:
        return
    say(
        f"cannot end: the script has attached {len(_passed)} times, and the job goes on in a later training, to which"
        " it has not come; give --fresh to start over"
    )
    sys.stdout.flush()
    os._exit(EXIT_GIVEN_UP)


def _caller() -> FrameType:
    """The frame of the script that attaches: adapters of frameworks may be between."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("ftlaunch_hooks."):
        frame = frame.f_back
    return frame


def peek(name: str, *, training: str = "", rank: int | None = None, values: bool = True) -> tuple[int, Any] | None:
    """Look, before attach(), where this attempt resumes: the step, and what state_dict() of `name` was there.

    None where training begins anew. attach() resumes from that very step. Call it on every rank that attaches.
    name: of an object with state_dict() that is no module and no optimizer. training: see attach(). rank: of the job
    that saved, whose number of ranks may be another one; this rank if not given. values: without them tensors are on
    the device `meta`, and are not read; NumPy's arrays cannot be. Raises StateError where nothing was saved under that
    name, or of that rank, and AttachError.
    """
    coordinator = _join("peek", "peek")
    step, saved = _look_once(training, coordinator)
    return None if saved is None else (step, saved_object(name, saved, coordinator, rank, values=values))


def resuming(*, training: str = "") -> bool:
    """Tell, before attach(), whether this start resumes from what an earlier one has saved.

    After attach() `job.resumed` tells the same. It is ChatLearn's `resume_training`. Call it on every rank that
    attaches.

    Args:
        training: see attach().

    Raises:
        AttachError: this process cannot take part in the job, or attach() was called before.
        Damaged: what the ranks have agreed on cannot be read.
    """
    coordinator = _join("tell whether this start resumes", "resuming")
    return _look_once(training, coordinator)[1] is not None


def resume_kind() -> Resume:
    """Tell, before attach(), where this start takes its state from; FRESH for a further training of this process.

    Raises AttachError.
    """
    coordinator = _join("tell where this start resumes", "resume_kind")
    return coordinator.resume()[0] if _job is None else Resume.FRESH


def begin_at(step: int, *, training: str = "") -> None:
    """Have attach() restore nothing, and count from `step` on, because its objects will hold a newer state.

    For an adapter whose framework loads a checkpoint of its own before attach(). Checkpoints of the job stay, and are
    older. A further training of this process counts on from the one before it instead. Call it on every rank that
    attaches, with the same step.

    Args:
        step: more than that of the job's newest checkpoint.
        training: see attach().
    """
    if _job is None:
        _begins_at[training] = step


def _look_once(training: str, coordinator: Coordinator) -> tuple[int, SavedTensors | None]:
    """Return the step at which a training goes on, and what was saved there; None: it begins anew."""
    if _job is not None:
        return 0, None  # another training of this process begins
    if training not in _looked_at:
        _looked_at[training] = _look(training, coordinator)
    return _looked_at[training]


def _look(training: str, coordinator: Coordinator) -> tuple[int, SavedTensors | None]:
    """The step at which a training goes on, or has ended, and what was saved there."""
    kind, step = coordinator.resume()
    check_usable(kind, coordinator)
    known, saved = known_trainings(kind, step, coordinator)
    if known is not None and (number := place_of(training, known, _passed)) < len(known.ends):
        step = known.ends[number]
        end_directory(known.up_to(number), step, coordinator)
        saved = open_step(Resume.STORAGE, step, coordinator)
    return step, saved


def _join(action: str, function: str) -> Coordinator:
    """Return whom this rank answers to, which it meets once.

    Args:
        action: what is wanted; it completes a sentence that begins with "cannot".
        function: the one that the script has called.

    Raises:
        AttachError: this process, or this thread, cannot take part in the job.
    """
    global _coordinator  # noqa: PLW0603 - one process is one rank
    error_file.count_as_final(AttachError, StateError)
    if bootstrap.is_forked():
        raise AttachError(
            f"cannot {action}: a rank has forked this process; the rank itself attaches, its children do not"
        )
    if (thread := threading.current_thread()) is not threading.main_thread():
        raise AttachError(
            f"cannot {action}: {function}() was called in the thread {thread.name!r}, and a rank hears in its main"
            " thread alone that it is to stop; attach and train in the main thread, and run what goes on beside it in"
            " others"
        )
    if _job is not None and not _job.is_over:
        raise AttachError(
            f"cannot {action}: attach() was called before in this process, and that training is not over; keep the Job"
            " that it returned, or say with its finish() that the training is over"
        )
    error_file.come_first()
    if _coordinator is None:
        page = bootstrap.own_page() or bootstrap.take_page_for_launcher()
        _coordinator = Supervised(page) if page is not None else standalone.join()
    return _coordinator
