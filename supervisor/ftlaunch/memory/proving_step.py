"""Chooses the step in memory at which a job resumes so that a repeated step can prove the resume exact. Pure.

A rank leaves fingerprints of its steps. Resuming before a step with a fingerprint repeats that step, and comparing the
two results proves the resume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftlaunch.memory.recovery_plan import NONE

AUTO = "auto"
OFF = "off"
_CHEAP_SECONDS = 0.1  # the most that steps may cost that are repeated for the proof alone


def choose_proving_step(
    newest: int,
    slots: Mapping[int, Sequence[int]],
    evidence: Mapping[int, int],
    *,
    mode: str,
    step_seconds: float,
    oldest: int = 0,
) -> int:
    """Return the step to resume at: `newest`, or an older step in memory if that makes a proof possible.

    An older step is chosen if some rank has no fingerprint of a step after `newest`, and every rank has a fingerprint
    of a step after the older one. With mode "auto", repeating the steps in between must also be cheap.

    Args:
        newest: the newest step that every rank has whole in memory.
        slots: the steps in the slots of each rank, for all ranks.
        evidence: the newest step of which each rank has left a fingerprint, or NONE.
        mode: `verify_resume` of the spec: auto, on or off.
        step_seconds: seconds that a step takes; 0 if unknown.
        oldest: the oldest step that may be chosen.
    """
    if mode == OFF or not slots or all(evidence.get(rank, NONE) > newest for rank in slots):
        return newest
    held = [{step for step in steps if oldest <= step < newest} for steps in slots.values()]
    older = max(set.intersection(*held), default=NONE)
    if older == NONE or any(evidence.get(rank, NONE) <= older for rank in slots):
        return newest
    is_cheap = 0 < (newest - older) * step_seconds <= _CHEAP_SECONDS
    return newest if mode == AUTO and not is_cheap else older
