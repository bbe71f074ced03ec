"""Chooses where a job without a supervisor resumes. Only rank 0 does it, from what storage has."""

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

    Raises:
        CannotLoad: what was asked for cannot be loaded; nothing was changed.
        OSError: storage cannot be read, or earlier checkpoints cannot be put aside.
    """
    own = load is not None and initial.is_own(load, checkpoint_dir)
    fresh = fresh_start.decide(checkpoint_dir, command, is_asked=is_fresh_asked, say=say)
    if fresh.begins_anew and not own:
        _put_aside(checkpoint_dir, load, say)
    initial.settle_own(load, checkpoint_dir, fresh, lambda: None, say)
    if fresh.begins_anew:
        fresh_start.note_beginning(checkpoint_dir, command, fresh.run)
    step, refusals = verify.newest_verified(checkpoint_dir)
    _tell(refusals, say)
    if step == NONE and layout.refused_before(checkpoint_dir):
        return Resume.REFUSED, NONE
    if load is not None and not own:
        if step == NONE:
            return _elsewhere(load, say)
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
    """The answer where all nodes hold `memory_step` in memory; None where they hold nothing. Raises OSError.

    Memory outlives a restart of the same job only, which starts nothing over and begins from no other checkpoint.
    """
    if memory_step == NONE:
        return None
    if max((step for step, _ in layout.list_iterations(checkpoint_dir)), default=NONE) > memory_step:
        step, refusals = verify.newest_verified(checkpoint_dir)
        _tell(refusals, say)
        if step > memory_step:
            return Resume.STORAGE, step
    return Resume.MEMORY, memory_step


def _elsewhere(load: InitialCheckpoint, say: Say) -> tuple[Resume, int]:
    initial.check(load)
    step, refusals = initial.find(load.path)
    _tell(refusals, say)
    if step == NONE:
        raise CannotLoad(initial.none_usable(load))
    say(initial.beginning(load, step))
    return (Resume.WEIGHTS if load.weights_only else Resume.LOADED), step


def _tell(refusals: list[Refusal], say: Say) -> None:
    for refusal in refusals:
        say(f"checkpoint of step {refusal.step} refused: {refusal.why}; it is now {refusal.to}")
