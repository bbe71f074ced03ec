"""Chooses where a job without a supervisor resumes. Only rank 0 of the job chooses, from the checkpoints on storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import fresh_start, initial, layout, verify
from ftlaunch_contract.checkpoint.fresh_start import Command
from ftlaunch_contract.checkpoint.initial import CannotLoad, InitialCheckpoint
from ftlaunch_contract.checkpoint.verify import Refusal
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Resume

Say = Callable[[str], None]


def choose(
    checkpoint_dir: Path, load: InitialCheckpoint | None, command: Command, is_fresh_asked: bool, say: Say
) -> tuple[Resume, int]:
    """Choose for all ranks where they resume, and from which step.

    If a fresh start was asked for, earlier checkpoints are put aside. Damaged checkpoints are put aside, too.

    Args:
        checkpoint_dir: the job's checkpoint directory.
        load: the checkpoint that the job is to begin with, if one was asked for.
        command: the job's command, which decides whether checkpoints belong to this job.
        is_fresh_asked: whether the user asked for a fresh start.
        say: told in a sentence what is chosen, refused or moved.

    Returns:
        The kind of the resume and its step: NONE if all checkpoints were refused, 0 at a fresh start.

    Raises:
        CannotLoad: the checkpoint that was asked for cannot be loaded; nothing was changed.
        OSError: storage cannot be read, or earlier checkpoints cannot be put aside.
    """
    own = load is not None and initial.is_own(load, checkpoint_dir)
    fresh = fresh_start.decide(checkpoint_dir, command, is_asked=is_fresh_asked, say=say)
    if fresh.is_fresh and not own:
        _put_aside(checkpoint_dir, load, say)
    initial.settle_own(load, checkpoint_dir, fresh, forget_memory=lambda: None, say=say)
    if fresh.is_fresh:
        fresh_start.note_beginning(checkpoint_dir, command, fresh.run)
    step, refusals = verify.newest_verified(checkpoint_dir)
    _report_refusals(refusals, say)
    if step == NONE and layout.refused_before(checkpoint_dir):
        return Resume.REFUSED, NONE
    if load is not None and not own:
        if step == NONE:
            return _choose_initial(load, say)
        say(initial.not_first(load, step, fresh))
    return (Resume.STORAGE, step) if step != NONE else (Resume.FRESH, 0)


def _put_aside(checkpoint_dir: Path, load: InitialCheckpoint | None, say: Say) -> None:
    if load is not None:
        initial.check(load)  # before anything is changed
    moved = layout.supersede(checkpoint_dir)
    if moved is not None:
        steps = ", ".join(str(step) for step, _ in layout.list_iterations(moved)) or "none"
        say(f"{protocol.ENV_FRESH}=1: earlier checkpoints are now in {moved} (steps: {steps})")


def choose_beside(memory_step: int, checkpoint_dir: Path, say: Say) -> tuple[Resume, int] | None:
    """Choose between the step that all nodes hold in memory and storage.

    Memory outlives only a restart of the same job, which neither starts over nor begins from another checkpoint.

    Args:
        memory_step: the newest step that all nodes hold in memory, or NONE.
        checkpoint_dir: the job's checkpoint directory.
        say: told in a sentence which checkpoints are refused.

    Returns:
        The kind of the resume and its step; None if the nodes hold no common step.

    Raises:
        OSError: storage cannot be read.
    """
    if memory_step == NONE:
        return None
    if max((step for step, _ in layout.list_iterations(checkpoint_dir)), default=NONE) > memory_step:
        step, refusals = verify.newest_verified(checkpoint_dir)
        _report_refusals(refusals, say)
        if step > memory_step:
            return Resume.STORAGE, step
    return Resume.MEMORY, memory_step


def _choose_initial(load: InitialCheckpoint, say: Say) -> tuple[Resume, int]:
    """Choose the checkpoint that the job was asked to begin with. Raises CannotLoad, OSError."""
    initial.check(load)
    step, refusals = initial.find(load.path)
    _report_refusals(refusals, say)
    if step == NONE:
        raise CannotLoad(initial.none_usable(load))
    say(initial.beginning(load, step))
    return (Resume.WEIGHTS if load.weights_only else Resume.LOADED), step


def _report_refusals(refusals: list[Refusal], say: Say) -> None:
    for refusal in refusals:
        say(f"checkpoint of step {refusal.step} refused: {refusal.why}; it is now {refusal.to}")
