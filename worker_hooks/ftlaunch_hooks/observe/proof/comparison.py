"""Decides from two fingerprints whether a step that was made again is the same step. StepProof calls it. Pure."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

from ftlaunch_contract.pages.fingerprint_ring import StepFingerprint, StepPart
from ftlaunch_contract.pages.proof_record import ProofPart

_LOSS_ROUNDING = 3e-5
"""relative difference of two losses of single precision that rounding explains: some hundred units in the last place"""
_HALF_LOSS_ROUNDING = 2e-2
"""relative difference of two losses of half precision that rounding explains"""
_UPDATE_ROUNDING = 0.05
"""difference of parameters that rounding explains, as a share of the step's update: a few of Adam's signs may turn"""
_PARAMETER_ROUNDING = 1e-3
"""difference of parameters that rounding explains, as a share of the parameters, where the update is not known"""


@dataclass(frozen=True)
class StepDifference:
    """The first difference between a step and the same step made again."""

    what: ProofPart
    """the part of the step that differs"""
    is_rounding: bool
    """whether batches, random numbers and learning rates are the same, and the loss or the parameters differ by no more
    than kernels that are not deterministic explain"""
    before: float = math.nan
    """the number of the process that has ended; NaN where the part is no number"""
    now: float = math.nan
    """the number of the process that has resumed; NaN where the part is no number"""
    parameter: int = -1
    """index of the first parameter that differs; -1 where the part is no parameter"""


@dataclass(frozen=True)
class SampleComparison:
    """The ways to compare two samples of parameters that were taken at the same step."""

    first_difference: Callable[[bytes, bytes], tuple[int, float, float] | None]
    """returns the index of the first parameter that differs, and its numbers before and now; None for equal samples"""
    distance: Callable[[bytes, bytes], float]
    """returns the Euclidean distance of two samples"""
    is_half: bool
    """whether any parameter has half precision"""


def compare_steps(
    before: StepFingerprint, now: StepFingerprint, samples: SampleComparison, previous: bytes
) -> StepDifference | None:
    """Compare what two processes have noted of one step, as far as both have noted the same parts.

    Parts are compared in the order of causes: a batch is drawn before a loss is computed from the batch.

    Args:
        before: fingerprint by the process that has ended.
        now: fingerprint by the process that has resumed.
        samples: the ways to compare samples of parameters.
        previous: samples of the same parameters at the beginning of the step; empty where unknown.

    Returns:
        The first difference, or None for equal steps.
    """
    both = before.parts & now.parts
    if both & StepPart.BATCH and before.batch != now.batch:
        return StepDifference(ProofPart.BATCH, is_rounding=False)
    is_loss_equal = _bits(before.loss) == _bits(now.loss)
    has_loss = bool(both & StepPart.LOSS) and before.losses == now.losses
    have_same_generators = (before.parts ^ now.parts) & StepPart.ALL_RANDOM == 0
    if both & StepPart.RANDOM and have_same_generators and before.random != now.random:
        return StepDifference(ProofPart.RANDOM, is_rounding=False)
    if both & StepPart.RATES and before.rates != now.rates:
        return StepDifference(ProofPart.RATES, is_rounding=False)
    found = samples.first_difference(before.samples, now.samples) if both & StepPart.SAMPLES else None
    if has_loss and not is_loss_equal:
        is_rounding = _is_rounding_of_loss(before.loss, now.loss, is_half=samples.is_half)
        if found is not None:
            is_rounding = is_rounding and _is_rounding_of_update(
                before=before.samples, now=now.samples, previous=previous, samples=samples
            )
        return StepDifference(ProofPart.LOSS, is_rounding=is_rounding, before=before.loss, now=now.loss)
    if found is None:
        return None
    index, number_before, number_now = found
    is_rounding = _is_rounding_of_update(before=before.samples, now=now.samples, previous=previous, samples=samples)
    return StepDifference(
        ProofPart.PARAMETER, is_rounding=is_rounding, before=number_before, now=number_now, parameter=index
    )


def _bits(number: float) -> bytes:
    return struct.pack("d", number)


def _is_rounding_of_loss(before: float, now: float, *, is_half: bool) -> bool:
    if not (math.isfinite(before) and math.isfinite(now)):
        return False
    limit = _HALF_LOSS_ROUNDING if is_half else _LOSS_ROUNDING
    return abs(now - before) <= limit * max(abs(before), abs(now), 1e-30)


def _is_rounding_of_update(before: bytes, now: bytes, previous: bytes, samples: SampleComparison) -> bool:
    """Return whether two results of a step are much nearer to each other than to the beginning of the step."""
    if not previous:
        return samples.distance(before, now) <= _PARAMETER_ROUNDING * samples.distance(bytes(len(before)), before)
    return samples.distance(before, now) <= _UPDATE_ROUNDING * samples.distance(previous, before)
