"""The checkpoint that a job is asked to begin with, by path or by number. Without torch.

A path means a checkpoint, or a folder of checkpoints, of another job. It is for the first start: a job that has
checkpoints of its own goes on from those. A number means one of the job's own checkpoints: the job goes back to it, and
later ones are put aside. This happens once, and a note in the checkpoint directory says so: the same command, run again
after a preemption, must not throw away the checkpoints that were made since. A checkpoint that another library wrote
(foreign_formats.py) supplies its weights only. `load_checkpoint` and `resume_training` are MindSpore Transformers'
names.

The supervisor calls this before ranks start; without a supervisor rank 0 does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ftlaunch_contract import foreign_formats
from ftlaunch_contract.checkpoint import foreign, layout, verify
from ftlaunch_contract.checkpoint.fresh_start import FreshStart
from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.checkpoint.verify import Refusal
from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.regular_file import read_regular
from ftlaunch_contract.foreign_formats import Format
from ftlaunch_contract.progress import Advance, ignore

NOTE = "loaded.json"  # in a checkpoint directory: the step to which the job went back


class CannotLoad(Exception):
    """The requested checkpoint cannot be loaded. The message is a sentence for the user; nothing was changed."""


@dataclass(frozen=True)
class InitialCheckpoint:
    """The checkpoint to begin with."""

    path: Path  # absolute: a checkpoint, a folder of checkpoints, or a checkpoint that another library wrote
    weights_only: bool  # leaves out the step, the optimizer, random numbers and the data position
    foreign: Format | None = None  # the format, if another library wrote the checkpoint


def asked(path: Path, weights_only: bool) -> InitialCheckpoint:
    """Return the checkpoint that a path means, according to the files that are there."""
    kind = foreign_format(path)
    must_be_weights = kind not in (None, Format.MINDSPORE)
    return InitialCheckpoint(path, weights_only=weights_only or must_be_weights, foreign=kind)


def foreign_format(path: Path, step: int | None = None) -> Format | None:
    """Return the format of a checkpoint that another library wrote; None for a checkpoint of ours, or for nothing.

    Args:
        path: what the user gave.
        step: the number that `find` has returned; None before `find` was called.
    """
    return None if _candidates(path) else foreign_formats.format_of(foreign_at(path, step)[1])


def foreign_at(path: Path, step: int | None = None) -> tuple[int, Path]:
    """Return the number and the path of a checkpoint that another library wrote.

    In a folder of MindSpore Transformers' checkpoints this is the checkpoint numbered `step`; by default the one in the
    tracker file, which that library writes last in a save. Any other checkpoint is `path` itself and has the number 0.
    """
    if foreign_formats.format_of(path) is None:
        wanted_step = layout.read_tracker(path) if step is None else step
        for number, folder in layout.list_foreign(path):
            if number == wanted_step:
                return number, folder
    return 0, path


def is_own(load: InitialCheckpoint, checkpoint_dir: Path) -> bool:
    """Whether the job's own checkpoint directory, or one of the checkpoints in it, is meant.

    Raises:
        CannotLoad: only the weights of an own checkpoint are asked for, so that steps of two runs would mix in one
            directory.
    """
    path = load.path.resolve()
    own = checkpoint_dir.resolve()
    if load.weights_only and own in (path, path.parent):
        raise CannotLoad(
            f"cannot take only the weights from {load.path}: the job's checkpoints go there too, and steps that"
            " begin at 0 again would mix with those; give another checkpoint directory"
        )
    return own == path or (own == path.parent and layout.step_of(path) is not None)


# --- checkpoints of another job ---------------------------------------------------------------------------


def check(load: InitialCheckpoint) -> None:
    """Check that there is a checkpoint that can be loaded in the way asked for. Its content is not verified.

    Raises:
        CannotLoad: there is none, or another library wrote it and a resume is asked for.
    """
    if load.foreign is Format.MINDSPORE and not load.weights_only:
        raise CannotLoad(
            f"cannot go on from {load.path}: it is {load.foreign.value}, of which only the weights can be taken;"
            " --no-resume-training does, and the job begins at step 0"
        )
    if not _candidates(load.path) and load.foreign is None:
        why = "there is no such file or directory"
        if load.path.exists():
            why = _whose(load.path) or "there is no checkpoint in it that this version knows"
        raise CannotLoad(f"cannot load {load.path}: {why}")


def find(path: Path, advance: Advance = ignore) -> tuple[int, list[Refusal]]:
    """Find the checkpoint that `path` means.

    In a folder of ours the checkpoint that the tracker file names is tried first, then the newest. Nothing is moved:
    the folder belongs to another job. For another library's checkpoint the number of `foreign_at` is returned, so that
    all ranks read the same one even if the tracker file changes; whether the checkpoint can be used, its reader finds
    out.

    Args:
        path: what the user gave.
        advance: told the number of bytes that are read.

    Returns:
        The step of the checkpoint (-1: none is usable), and the checkpoints that were refused.
    """
    if foreign_format(path) is not None:
        return foreign_at(path)[0], []
    refusals: list[Refusal] = []
    for step, directory in _candidates(path):
        try:
            return int(verify.verify(directory, advance=advance)["step"]), refusals
        except Damaged as damage:
            refusals.append(Refusal(step, str(damage), f"where it was, {directory}"))
        except OSError as error:
            refusals.append(Refusal(step, f"it cannot be read ({error.strerror})", f"where it was, {directory}"))
    return -1, refusals


def checkpoint_at(path: Path, step: int) -> Path:
    """Return the directory of the checkpoint whose step `find` has returned."""
    return path if (path / layout.METADATA).exists() else layout.iteration_dir(path, step)


def _whose(path: Path) -> str:
    """Return a sentence on who made the checkpoint, or the newest one in a folder, that is not ours; empty for none."""
    inside = layout.list_foreign(path)
    if inside and foreign_formats.program_of(inside[0][1]):
        return f"{foreign.whose(inside[0][1])}, and {layout.TRACKER} names none that is there; give one of them"
    if not inside and layout.step_of(path) is None and not (path / layout.METADATA).exists():
        return ""
    return f"{foreign.whose(inside[0][1] if inside else path)}, and ftlaunch loads none of its checkpoints"


def _candidates(path: Path) -> list[tuple[int, Path]]:
    if layout.is_ours(path):
        return [(layout.step_of(path) or 0, path)]
    if (path / layout.METADATA).exists() or layout.step_of(path) is not None:
        return []
    try:
        found = layout.list_iterations(path)
    except NotADirectoryError:
        return []
    tracked = layout.read_tracker(path)
    return sorted(found, key=lambda entry: (entry[0] != tracked, -entry[0]))


def beginning(load: InitialCheckpoint, step: int) -> str:
    """Return the log line for a job that begins with a checkpoint, at the step that `find` has returned."""
    if load.foreign is not None:
        which = f" of iteration {step}" if step else ""
        begins = "the job begins at step 0 with those alone"
        return f"taking the weights{which} from {load.path}, {load.foreign.value}; {begins}"
    if load.weights_only:
        return f"taking the weights of step {step} from {load.path}; the job begins at step 0"
    return f"going on from step {step} in {load.path}"


def none_usable(load: InitialCheckpoint) -> str:
    """Return the error for the case that `find` found no usable checkpoint."""
    return f"cannot load {load.path}: it is not a usable checkpoint, nor does it hold one"


def not_first(load: InitialCheckpoint, step: int, fresh: FreshStart) -> str:
    """Return the log line for a job that has checkpoints of its own and therefore ignores the given one."""
    hint = "" if fresh.is_asked else " (with --fresh it begins there again)"
    return f"{load.path} is for the job's first start, and it has its own step {step}: going on from that{hint}"


# --- checkpoints of the job's own -------------------------------------------------------------------------


def step_to_go_back_to(load: InitialCheckpoint | None, checkpoint_dir: Path, fresh: FreshStart) -> int | None:
    """Return the step of the job's own checkpoint to which `settle_own` would go back; None if it would not.

    Args:
        load: the checkpoint that is asked for; None for none.
        checkpoint_dir: the job's own.
        fresh: a start that begins anew goes back even if that was done before.
    """
    own = load.path.resolve() if load is not None and is_own(load, checkpoint_dir) else None
    step = layout.step_of(own) if own is not None else None
    return None if step is None or (_went_back(checkpoint_dir / NOTE, step) and not fresh.is_fresh) else step


def settle_own(
    load: InitialCheckpoint | None,
    checkpoint_dir: Path,
    fresh: FreshStart,
    forget_memory: Callable[[], None],
    say: Callable[[str], None],
) -> Path | None:
    """Go back to one of the job's own checkpoints if that is asked for and was not done before.

    Newer checkpoints are put aside; none is deleted.

    Args:
        load: the checkpoint that is asked for; None for none.
        checkpoint_dir: the job's own; the caller holds its lock.
        fresh: a start that begins anew goes back even if that was done before.
        forget_memory: drops the snapshots in memory; called before checkpoints are moved.
        say: called with a sentence for the user.

    Returns:
        Where the newer checkpoints are now; None where none was moved.

    Raises:
        CannotLoad: the checkpoint is missing, damaged or another program's.
        OSError: checkpoints cannot be moved, or the note cannot be written.
    """
    note = checkpoint_dir / NOTE
    own = load.path.resolve() if load is not None and is_own(load, checkpoint_dir) else None
    step = layout.step_of(own) if own is not None else None
    if step is None:
        note.unlink(missing_ok=True)  # the next request to go back is a new one
        return None
    if _went_back(note, step) and not fresh.is_fresh:
        hint = "" if fresh.is_asked else " (with --fresh it goes back again)"
        say(f"this job went back to step {step} before: it goes on from its newest{hint}")
        return None
    _expect_usable(checkpoint_dir, step)
    forget_memory()
    aside = layout.supersede(checkpoint_dir, above=step)
    atomic.replace_durable(note, json.dumps({"step": step}).encode())  # last: a start without it goes back again
    later = f"; later checkpoints are now in {aside}" if aside is not None else ""
    say(f"going back to step {step}{later}")
    return aside


def _went_back(note: Path, step: int) -> bool:
    try:
        return bool(json.loads(read_regular(note))["step"] == step)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _expect_usable(checkpoint_dir: Path, step: int) -> None:
    directory = layout.iteration_dir(checkpoint_dir, step)
    if not directory.is_dir():
        steps = ", ".join(str(step) for step, _ in layout.list_iterations(checkpoint_dir)) or "none"
        raise CannotLoad(f"cannot load step {step}: {checkpoint_dir} has no such checkpoint; it has {steps}")
    if layout.is_foreign(directory):
        raise CannotLoad(f"cannot load step {step}: {foreign.whose(directory)}; nothing was changed")
    try:
        verify.verify(directory)
    except Damaged as damage:
        raise CannotLoad(f"cannot load step {step}: {damage}; nothing was changed") from None
