"""Whether a step that was made again was the same: decides from two fingerprints. Pure."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

from ftlaunch_contract.pages.fingerprint_ring import StepFingerprint, StepPart
from ftlaunch_contract.pages.proof_record import ProofPart

_LOSS_ROUNDS = 3e-5
"""relative difference of two losses of single precision that rounding explains: some hundred units of its last place"""
_HALF_LOSS_ROUNDS = 2e-2
"""of half precision"""
_UPDATE_ROUNDS = 0.05
"""share of a step's change of the parameters by which rounding may move them: a few of Adam's signs may turn"""
_NUMBERS_ROUND = 1e-3
"""share of the parameters themselves, where it is not known how far the step has moved them"""


@dataclass(frozen=True)
class StepDifference:
    """What differed first in a step that was made again.

    is_rounding: the same batches, random numbers and learning rates have given a loss, or parameters, that differ by no
    more than kernels differ that are not deterministic. before, now: NaN where what differed is no number. parameter:
    index of the first parameter that differs, -1 where there is none.
    """

    what: ProofPart
    is_rounding: bool
    before: float = math.nan
    now: float = math.nan
    parameter: int = -1


@dataclass(frozen=True)
class SampleComparison:
    """How samples of parameters are compared, see ParameterSamples.

    first_difference: of two samples the index of the first parameter that differs, and its numbers; None where all are
    alike. distance: between two samples. is_half: whether parameters have half precision.
    """

    first_difference: Callable[[bytes, bytes], tuple[int, float, float] | None]
    distance: Callable[[bytes, bytes], float]
    is_half: bool


def compare_steps(
    before: StepFingerprint, now: StepFingerprint, samples: SampleComparison, previous: bytes
) -> StepDifference | None:
    """Compare what two processes have noted of one step; only parts that both have noted are compared.

    The order of the answers is the order of causes: a batch is drawn before a loss is computed from it.

    Args:
        before: of the process that has ended.
        now: of the process that has resumed.
        samples: how samples are compared.
        previous: samples as the step began, of the same parameters; empty where there are none.

    Returns:
        What differed first; None where nothing did.
    """
    both = before.parts & now.parts
    if both & StepPart.BATCH and before.batch != now.batch:
        return StepDifference(ProofPart.BATCH, is_rounding=False)
    is_loss_equal = _bits(before.loss) == _bits(now.loss)
    has_loss = bool(both & StepPart.LOSS) and before.losses == now.losses
    are_of_the_same = (before.parts ^ now.parts) & StepPart.ALL_RANDOM == 0
    if both & StepPart.RANDOM and are_of_the_same and before.random != now.random:
        return StepDifference(ProofPart.RANDOM, is_rounding=False)
    if both & StepPart.RATES and before.rates != now.rates:
        return StepDifference(ProofPart.RATES, is_rounding=False)
    found = samples.first_difference(before.samples, now.samples) if both & StepPart.SAMPLES else None
    if has_loss and not is_loss_equal:
        is_rounding = _is_rounding_of_loss(before.loss, now.loss, is_half=samples.is_half)
        if found is not None:
            is_rounding = is_rounding and _is_rounding_of_update(before.samples, now.samples, previous, samples)
        return StepDifference(ProofPart.LOSS, is_rounding, before.loss, now.loss)
    if found is None:
        return None
    index, number_before, number_now = found
    is_rounding = _is_rounding_of_update(before.samples, now.samples, previous, samples)
    return StepDifference(ProofPart.PARAMETER, is_rounding, number_before, number_now, index)


def _bits(number: float) -> bytes:
    return struct.pack("d", number)


def _is_rounding_of_loss(before: float, now: float, *, is_half: bool) -> bool:
    if not (math.isfinite(before) and math.isfinite(now)):
        return False
    limit = _HALF_LOSS_ROUNDS if is_half else _LOSS_ROUNDS
    return abs(now - before) <= limit * max(abs(before), abs(now), 1e-30)


def _is_rounding_of_update(before: bytes, now: bytes, previous: bytes, samples: SampleComparison) -> bool:
    """Whether two results of a step are much nearer to each other than the step is long."""
    if not previous:
        return samples.distance(before, now) <= _NUMBERS_ROUND * samples.distance(bytes(len(before)), before)
    return samples.distance(before, now) <= _UPDATE_ROUNDS * samples.distance(previous, before)
