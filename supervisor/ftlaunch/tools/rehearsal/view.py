"""Formats the outcomes of a rehearsal as text for a person, and as data for `--json`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

from ftlaunch.common.formatting import duration
from ftlaunch.tools.rehearsal.pauses import Pause
from ftlaunch.tools.rehearsal.rehearsal import RehearsalOutcome

_MAX_NAMED = 3  # differing things that a sentence names
_MAX_PLACE = 50  # characters of a place


def line(outcome: RehearsalOutcome, steps: int) -> str:
    """Return the line about one run. steps: steps of the run."""
    return f"{'ok' if outcome.good else 'BAD':<4}  {outcome.fault:<20}  {_outcome_text(outcome, steps)}"


def _outcome_text(outcome: RehearsalOutcome, steps: int) -> str:
    if not outcome.survived:
        return f"does not survive: {outcome.trouble}"
    if outcome.back_after is None and not outcome.steps_lost and outcome.likeness is None:
        return f"{steps} steps in {duration(outcome.seconds)}"
    back = "goes on" if outcome.back_after is None else f"back in {duration(outcome.back_after)}"
    lost = "1 step lost" if outcome.steps_lost == 1 else f"{outcome.steps_lost} steps lost"
    where = "" if outcome.struck_at is None else f"behind step {outcome.struck_at}: "
    return f"{where}{back}, {lost}, {_proof(outcome)}{_state(outcome, steps)}"


def _proof(outcome: RehearsalOutcome) -> str:
    """Say what repeated steps have shown; empty if nothing was resumed, or ranks record no fingerprints."""
    words = {
        "same": "verified, ",
        "rounded": "verified but for rounding, ",
        "unverified": "not verified, ",
        "different": f"{outcome.proof_sentence}, ",
    }
    return words.get(outcome.proof, "")


def pause_note(pause: Pause | None, steps: int) -> str:
    """Say where ranks are killed between two steps, and why there; or that there is no such place."""
    if pause is None:
        return (
            f"no pause between two steps was seen in {steps} steps: with more --steps, so that an epoch ends or an"
            " evaluation comes within them, ranks are killed there, too"
        )
    doing = f"in phase {pause.phase}" if pause.phase != "train" else "the end of an epoch, or an evaluation"
    return f"the longest pause is behind step {pause.step}: {duration(pause.seconds)}, {doing}; a rank is killed there"


def _state(outcome: RehearsalOutcome, steps: int) -> str:
    found = outcome.likeness
    assert found is not None
    if found.equal:
        return f"its state at step {steps} equals the undisturbed one bit for bit"
    names = [*found.others, *found.tensors]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"its state at step {steps} differs from the undisturbed one: {', '.join(names[:_MAX_NAMED])}{more}"


def verdict(outcomes: Sequence[RehearsalOutcome], deterministic: bool, varying: Collection[str] = ()) -> str:
    """Return one sentence about all runs.

    Args:
        outcomes: the outcomes of all runs.
        deterministic: whether two undisturbed runs end alike.
        varying: places that were not compared, because two undisturbed runs differ there.
    """
    bad = [outcome.fault for outcome in outcomes if not outcome.survived]
    if bad:
        return f"the job does not survive when {', '.join(bad)}"
    if all(outcome.good for outcome in outcomes):
        notes = f"{_unseeded(outcomes)}{_not_compared(varying)}"
        return f"the job survives all of it, and goes on as if nothing had happened{notes}"
    if not deterministic:
        return "the job survives all of it; it is not deterministic: two undisturbed runs differ as well"
    return "the job survives all of it, but does not go on as it would have: something that matters is not attached"


def _not_compared(varying: Collection[str]) -> str:
    """Name the places that were not compared, such as folders and times that a framework gives each run."""
    if not varying:
        return ""
    names = [place if len(place) <= _MAX_PLACE else f"{place[:20]}...{place[-20:]}" for place in sorted(varying)]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f" (not compared, as it is another one in every run: {', '.join(names[:_MAX_NAMED])}{more})"


def _unseeded(outcomes: Sequence[RehearsalOutcome]) -> str:
    found = {key for outcome in outcomes if outcome.likeness is not None for key in outcome.likeness.generators}
    kinds = sorted({key.split(".")[1] for key in found})
    return (
        f" (random numbers of {', '.join(kinds)} differ from run to run: the script does not seed them)"
        if kinds
        else ""
    )


def data(
    outcomes: Sequence[RehearsalOutcome], steps: int, deterministic: bool, varying: Collection[str]
) -> dict[str, Any]:
    """Return the outcomes for `--json`; the arguments are those of `verdict`."""
    return {
        "steps": steps,
        "survives": all(outcome.survived for outcome in outcomes),
        "equal": all(outcome.good for outcome in outcomes),
        "deterministic": deterministic,
        "not_compared": sorted(varying),
        "verdict": verdict(outcomes, deterministic, varying),
        "runs": [asdict(outcome) | {"good": outcome.good} for outcome in outcomes],
    }
