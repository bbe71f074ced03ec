"""What a rank has found of the steps that it made again after a resume, in its page. Standard library only."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.pages.words import PROOF

_VERDICT, _STEP, _STEPS, _AHEAD, _WHAT, _BEFORE, _NOW, _PARAMETER = range(8)  # words of the record


class ProofVerdict(enum.IntEnum):
    """What the comparison of a resumed rank's steps with those of the rank before it has given so far."""

    NONE = 0
    """the rank has not resumed"""
    AHEAD = 1
    """steps are to be made again, and those made so far were the same"""
    SAME = 2
    """all steps made again were the same, bit for bit"""
    ROUNDED = 3
    """the same batches, random numbers and learning rates gave a loss or parameters that differ by rounding"""
    DIFFERENT = 4
    UNVERIFIED = 5
    """no step was made again, or none that could be compared"""

    @property
    def is_final(self) -> bool:
        """Whether nothing will be compared any more in this attempt."""
        return self not in (ProofVerdict.NONE, ProofVerdict.AHEAD)


class ProofPart(enum.IntEnum):
    """What differed first in the first step that was not the same."""

    NOTHING = 0
    BATCH = 1
    RANDOM = 2
    RATES = 3
    LOSS = 4
    PARAMETER = 5
    OBJECT = 6
    """what was restored of an attached object: the step is that at which the rank has resumed"""


@dataclass(frozen=True)
class Proof:
    """The record.

    step: the first step that was not the same (n for the n-th step), or the newest one that was compared. steps: how
    many were compared. ahead: how many are to be made again in all. what: what differed first. before, now: the loss,
    or the value of the parameter, of the earlier and of this process; NaN where what differed is no number. parameter:
    index of the parameter, or of the object, in `protocol.sampled_names_path`, -1 where there is none.
    """

    verdict: ProofVerdict
    step: int = 0
    steps: int = 0
    ahead: int = 0
    what: ProofPart = ProofPart.NOTHING
    before: float = float("nan")
    now: float = float("nan")
    parameter: int = -1


def tell_proof(page: Page, proof: Proof) -> None:
    """Write the record into a rank's page; the verdict comes last, and a reader trusts the rest once it is there."""
    q, d, at = page.q, page.d, PROOF
    q[at + _STEP] = proof.step
    q[at + _STEPS] = proof.steps
    q[at + _AHEAD] = proof.ahead
    q[at + _WHAT] = proof.what
    d[at + _BEFORE] = proof.before
    d[at + _NOW] = proof.now
    q[at + _PARAMETER] = proof.parameter
    q[at + _VERDICT] = proof.verdict


def told_proof(page: Page) -> Proof:
    """Read the record of a rank's page."""
    q, d, at = page.q, page.d, PROOF
    verdict = ProofVerdict(q[at + _VERDICT])
    return Proof(
        verdict=verdict, step=q[at + _STEP], steps=q[at + _STEPS], ahead=q[at + _AHEAD], what=ProofPart(q[at + _WHAT]),
        before=d[at + _BEFORE], now=d[at + _NOW], parameter=q[at + _PARAMETER],
    )  # fmt: skip
