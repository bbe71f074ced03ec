"""Chooses where a job without a supervisor resumes. Only rank 0 does it, from what storage has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import initial, layout, verify
from ftlaunch_contract.checkpoint.initial import CannotLoad, InitialCheckpoint
from ftlaunch_contract.checkpoint.verify import Refusal
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Resume

Say = Callable[[str], None]


def choose(checkpoint_dir: Path, load: InitialCheckpoint | None, fresh: bool, say: Say) -> tuple[Resume, int]:
    """The answer for all ranks, and its step. Raises initial.CannotLoad, and OSError."""
    own = load is not None and initial.is_own(load, checkpoint_dir)
    if fresh and not own:
        if load is not None:
            initial.check(load)  # before anything is changed
        moved = layout.supersede(checkpoint_dir)
        if moved is not None:
            say(f"{protocol.ENV_FRESH}=1: earlier checkpoints are now in {moved}")
    initial.settle_own(load, checkpoint_dir, fresh, lambda: None, say)
    step, refusals = verify.newest_verified(checkpoint_dir)
    _tell(refusals, say)
    if step == NONE and layout.refused_before(checkpoint_dir):
        return Resume.REFUSED, NONE
    if load is not None and not own:
        if step == NONE:
            return _elsewhere(load, say)
        say(initial.not_first(load, step))
    return (Resume.STORAGE, step) if step != NONE else (Resume.FRESH, 0)


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
