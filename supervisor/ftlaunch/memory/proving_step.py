"""Which step in memory a job resumes at, so that a step is made again whose result proves the resume. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftlaunch.memory.recovery_plan import NONE

AUTO, OFF = "auto", "off"
_CHEAP_SECONDS = 0.1  # what steps may cost that are made again for the proof alone


def choose_proving_step(
    newest: int,
    slots: Mapping[int, Sequence[int]],
    evidence: Mapping[int, int],
    *,
    mode: str,
    step_seconds: float,
    oldest: int = 0,
) -> int:
    """Return the step to resume at: `newest`, or the step before it in memory where that buys a proof.

    An older step is chosen where some rank has nothing to compare with after `newest`, and every rank has something
    after the older step.

    Args:
        newest: the newest step that every rank has whole in memory.
        slots: rank -> the step in each of its slots, of all ranks.
        evidence: rank -> the newest step of which the rank has left a fingerprint, NONE where there is none.
        mode: `verify_resume` of the spec: auto, on or off.
        step_seconds: what a step takes, 0 where it is not known.
        oldest: no step before this one is chosen.
    """
    if mode == OFF or not slots or all(evidence.get(rank, NONE) > newest for rank in slots):
        return newest
    held = [{step for step in steps if oldest <= step < newest} for steps in slots.values()]
    older = max(set.intersection(*held), default=NONE)
    if older == NONE or any(evidence.get(rank, NONE) <= older for rank in slots):
        return newest
    is_cheap = 0 < (newest - older) * step_seconds <= _CHEAP_SECONDS
    return newest if mode == AUTO and not is_cheap else older
