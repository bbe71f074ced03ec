"""Which of three answers two fingerprints of one step give, and what differed first."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace

import pytest

from ftlaunch_contract.pages.fingerprint_ring import StepFingerprint, StepPart
from ftlaunch_contract.pages.proof_record import ProofPart
from ftlaunch_hooks.observe.proof.comparison import SampleComparison, compare_steps

WHOLE = StepPart.BATCH | StepPart.RANDOM | StepPart.RATES | StepPart.LOSS | StepPart.SAMPLES
PREVIOUS = array("d", [1.0, 2.0]).tobytes()
BEFORE = StepFingerprint(
    step=4, parts=WHOLE, batch=1, random=2, rates=3, loss=0.5, losses=1, samples=array("d", [1.1, 2.1]).tobytes()
)


def numbers(samples: bytes) -> array[float]:
    return array("d", samples)


def first_difference(before: bytes, now: bytes) -> tuple[int, float, float] | None:
    pairs = enumerate(zip(numbers(before), numbers(now), strict=True))
    return next(((index, one, other) for index, (one, other) in pairs if one != other), None)


def distance(before: bytes, now: bytes) -> float:
    return math.dist(numbers(before), numbers(now))


SAMPLES = SampleComparison(first_difference=first_difference, distance=distance, is_half=False)


def moved(by: float) -> bytes:
    return array("d", [1.1, 2.1 + by]).tobytes()


def test_the_same_step_differs_in_nothing() -> None:
    assert compare_steps(BEFORE, BEFORE, SAMPLES, PREVIOUS) is None


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"batch": 9, "random": 9, "loss": 9.0}, ProofPart.BATCH),
        ({"random": 9, "rates": 9, "loss": 9.0}, ProofPart.RANDOM),
        ({"rates": 9, "loss": 9.0}, ProofPart.RATES),
        ({"loss": 0.51}, ProofPart.LOSS),
        ({"samples": moved(0.05)}, ProofPart.PARAMETER),
        ({"loss": math.nan}, ProofPart.LOSS),
    ],
)
def test_what_differs_first_is_named_by_its_cause(change: dict[str, object], what: ProofPart) -> None:
    found = compare_steps(BEFORE, replace(BEFORE, **change), SAMPLES, PREVIOUS)  # type: ignore[arg-type]
    assert found is not None
    assert (found.what, found.is_rounding) == (what, False)


def test_a_parameter_is_named_with_its_numbers() -> None:
    found = compare_steps(BEFORE, replace(BEFORE, samples=moved(0.5)), SAMPLES, PREVIOUS)
    assert found is not None
    assert (found.parameter, found.before, round(found.now, 6)) == (1, 2.1, 2.6)


def test_last_bits_of_loss_and_parameters_are_rounding() -> None:
    now = replace(BEFORE, loss=0.5 * (1 + 1e-7), samples=moved(1e-7))
    found = compare_steps(BEFORE, now, SAMPLES, PREVIOUS)
    assert found is not None
    assert (found.what, found.is_rounding) == (ProofPart.LOSS, True)


def test_parameters_that_moved_elsewhere_are_no_rounding_though_the_loss_is() -> None:
    now = replace(BEFORE, loss=0.5 * (1 + 1e-7), samples=moved(0.1))
    found = compare_steps(BEFORE, now, SAMPLES, PREVIOUS)
    assert found is not None
    assert not found.is_rounding


def test_rounding_of_half_precision_is_larger() -> None:
    now = replace(BEFORE, loss=0.503, samples=moved(1e-3))
    for is_half in (False, True):
        found = compare_steps(BEFORE, now, replace(SAMPLES, is_half=is_half), PREVIOUS)
        assert found is not None
        assert found.is_rounding is is_half


def test_only_what_both_have_noted_is_compared() -> None:
    under_way = replace(BEFORE, parts=StepPart.LOSS, batch=0, random=0, rates=0, samples=b"")
    assert compare_steps(under_way, BEFORE, SAMPLES, PREVIOUS) is None
    found = compare_steps(replace(under_way, loss=0.7), BEFORE, SAMPLES, PREVIOUS)
    assert found is not None
    assert found.what is ProofPart.LOSS


def test_a_step_under_way_with_fewer_losses_is_not_compared_by_its_last_one() -> None:
    under_way = replace(BEFORE, parts=StepPart.LOSS, loss=0.9, losses=1, samples=b"")
    assert compare_steps(under_way, replace(BEFORE, losses=2), SAMPLES, PREVIOUS) is None


def test_without_the_samples_before_the_step_only_small_moves_are_rounding() -> None:
    for by, is_rounding in ((1e-6, True), (0.1, False)):
        found = compare_steps(BEFORE, replace(BEFORE, samples=moved(by)), SAMPLES, b"")
        assert found is not None
        assert found.is_rounding is is_rounding
