"""The functions by which a script joins the job: attach(), and before it resuming() and peek().

Scripts and the adapters of frameworks call them in the main thread of a rank. One process is one rank, so the job and
its coordinator are module variables.

The module must not be called `attach`: the import of a submodule sets the package's attribute of that name, so after
the first call `ft.attach` meant the module, and a second part of a script got the module in the function's place.
"""

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
from ftlaunch_hooks.job.parking import park
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
# The keys of the following dictionaries are the words by which a script tells its trainings apart.
_opened: dict[str, tuple[int, SavedTensors | None]] = {}  # what peek() has opened, until attach()
_begins_at: dict[str, int] = {}  # the step that begin_at() was given, until attach()
_passed: dict[str, PassedTraining] = {}  # earlier trainings than the job's current one, which the script has attached


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

    Call this function once everything is built; and again, once the training is over, for a further training.

    Args:
        frozen: names of objects that are never saved nor restored.
        replicated: names of modules whose parameters another wrapper than DistributedDataParallel keeps equal on all
            ranks, and of optimizers that step all their parameters on every rank: one rank saves them for all. If only
            some ranks keep the parameters equal (the ranks of a data-parallel group, beside tensor or pipeline
            parallelism), a mapping from each name to a function that returns, for a parameter, these ranks by their
            numbers in the job.
        anew: a word of the script's for each object named. An object that was saved under another word, or under none,
            is not restored: new data, or a new schedule at the old position.
        training: a word by which a job that resumes tells several trainings of one script apart (trainings.py).
        stands_for: a rank of the job that saved, for a job that had another number of ranks. This rank takes the state
            that `stands_for` saved as its own, random numbers included, and the script vouches that it may. Ignored if
            the number of ranks is the same.
        keep: whether to save and restore variables that the training loop changes and that nothing else saves.
        ignore: names of variables that need not be saved (`history`, `self.meter`): they are neither kept nor reported.
        objects: under any name, anything with state_dict() and load_state_dict(): models (DDP-wrapped too), optimizers,
            schedulers, scalers, samplers; and random number generators. Generators among the caller's variables are
            saved without being given.

    Returns:
        The job, of which there is one in a process.

    Raises:
        StateError: an argument, which the message names, cannot be saved or does not fit the saved state.
        AttachError: this process or thread cannot take part, an option names no object, or nothing that was saved is
            usable.
        Damaged: the saved state cannot be read.
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
    _opened.clear()
    caller = sys._getframe(1)
    is_asked_by_script = not caller.f_globals["__name__"].startswith("ftlaunch_hooks.")
    found = generators.find(_script_frame(), objects)
    if _job is not None:
        check_other(training, _job._trainings.words)
        _job._begin_next_training(objects, choices, found)
        return _job
    job = _attach_first(objects, choices=choices, coordinator=coordinator, found=found)
    if is_asked_by_script:
        job._watch_beginning(caller)
    return job


def _attach_first(objects: dict[str, Any], choices: Choices, coordinator: Coordinator, found: Mapping[str, Any]) -> Job:
    """Attach the first training of this process that the job is in, or an earlier training that has ended.

    Returns:
        A Job, or a PassedTraining for a training that has ended before the step where the job resumes.

    Raises:
        AttachError, StateError, Damaged: as attach() does.
    """
    global _job  # noqa: PLW0603 - one process is one rank
    kind, step = coordinator.resume()
    known, saved = known_trainings(kind, step, coordinator)
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
        passed = PassedTraining(
            objects,
            choices,
            coordinator,
            found=found,
            trainings=trainings.up_to(number),
            end=trainings.ends[number],
        )
        return _passed.setdefault(choices.training, passed)
    _job = Job(
        objects,
        choices,
        coordinator,
        found=found,
        trainings=trainings,
        saved=saved,
        begins_at=begins_at,
    )
    return _job


def _check_named(objects: Collection[str], **options: Collection[str]) -> None:
    """Check that the names given by each option are names of objects. Raises AttachError."""
    for option, names in options.items():
        if unknown := sorted(set(names) - set(objects)):
            raise AttachError(f"cannot attach: {option} names {unknown[0]!r}, which is none of {sorted(objects)}")


def _check_reached(_ends_well: bool) -> None:
    """End this process as failed if the script ends without having come to the training where the job is.

    Such a script has trained nothing, so its end is not the end of the job.
    """
    if _job is not None:
        return
    say(
        f"cannot end: the script has attached {len(_passed)} times, and the job goes on in a later training, to which"
        " it has not come; give --fresh to start over"
    )
    sys.stdout.flush()
    os._exit(EXIT_GIVEN_UP)


def _script_frame() -> FrameType:
    """Return the frame of the script that attaches. Frames of adapters may lie between the script and attach()."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("ftlaunch_hooks."):
        frame = frame.f_back
    return frame


def peek(name: str, *, training: str = "", rank: int | None = None, values: bool = True) -> tuple[int, Any] | None:
    """Look, before attach(), where this attempt resumes: the step, and what state_dict() of `name` was there.

    attach() resumes from this very step. Call this function on every rank that attaches.

    Args:
        name: the name of an object with state_dict() that is neither a module nor an optimizer.
        training: the training's word, as given to attach().
        rank: the rank whose state is returned, of the job that saved, which may have had another number of ranks; by
            default this rank.
        values: whether to read tensors. If not, tensors are on the device `meta`, and NumPy's arrays are not possible.

    Returns:
        The step and the state; None if training starts at its beginning.

    Raises:
        StateError: nothing was saved under this name, or by this rank.
        AttachError: this process cannot take part in the job, or attach() was called before.
        Damaged: the saved state cannot be read.
    """
    coordinator = _join("peek", "peek")
    step, saved = _open_once(training, coordinator)
    return (
        None
        if saved is None
        else (step, saved_object(name, saved=saved, coordinator=coordinator, rank=rank, values=values))
    )


def resuming(*, training: str = "") -> bool:
    """Tell, before attach(), whether this start resumes from what an earlier one has saved.

    After attach() `job.resumed` tells the same. This is ChatLearn's `resume_training`. Call this function on every rank
    that attaches.

    Args:
        training: the training's word, as given to attach().

    Raises:
        AttachError: this process cannot take part in the job, or attach() was called before.
        Damaged: the state that the ranks have agreed on cannot be read.
    """
    coordinator = _join("tell whether this start resumes", "resuming")
    _, saved = _open_once(training, coordinator)
    return saved is not None


def resume_kind() -> Resume:
    """Tell, before attach(), where this start takes its state from; FRESH for a further training of this process.

    Raises:
        AttachError: this process cannot take part in the job, or attach() was called before.
    """
    coordinator = _join("tell where this start resumes", "resume_kind")
    return coordinator.resume()[0] if _job is None else Resume.FRESH


def begin_at(step: int, *, training: str = "") -> None:
    """Have attach() restore nothing, and count from `step` on, because its objects will hold a newer state.

    This is for adapters whose framework loads a checkpoint of its own before attach(). Checkpoints of the job stay, and
    are older. In a further training of this process the call has no effect: steps are counted on from the previous
    training. Call this function on every rank that attaches, with the same step.

    Args:
        step: a later step than that of the job's newest checkpoint.
        training: the training's word, as given to attach().
    """
    if _job is None:
        _begins_at[training] = step


def _open_once(training: str, coordinator: Coordinator) -> tuple[int, SavedTensors | None]:
    """Return what `_open` returns, which is called once for each training."""
    if _job is not None:
        return 0, None  # a further training of this process begins
    if training not in _opened:
        _opened[training] = _open(training, coordinator)
    return _opened[training]


def _open(training: str, coordinator: Coordinator) -> tuple[int, SavedTensors | None]:
    """Return the step at which a training resumes, or has ended, and the saved state of this step.

    The state is None if the training starts at its beginning.
    """
    kind, step = coordinator.resume()
    check_usable(kind, coordinator)
    known, saved = known_trainings(kind, step, coordinator)
    if known is not None and (number := place_of(training, known, _passed)) < len(known.ends):
        step = known.ends[number]
        end_directory(known.up_to(number), step, coordinator)
        saved = open_step(Resume.STORAGE, step, coordinator)
    return step, saved


def _join(action: str, function: str) -> Coordinator:
    """Return this rank's coordinator, which is made at the first call.

    Args:
        action: the end of an error message that begins with "cannot".
        function: the name of the function that the script has called.

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
        page = bootstrap.own_page() or bootstrap.acquire_page_for_launcher()
        _coordinator = Supervised(page, park) if page is not None else standalone.join()
    return _coordinator
