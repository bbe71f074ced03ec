"""A record in a rank's page: what the comparison of the steps made again after a resume has shown.

The rank writes the record with `write_proof`; the supervisor reads it with `read_proof`. Standard library only.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.pages.words import PROOF

_VERDICT, _STEP, _STEPS, _AHEAD, _WHAT, _BEFORE, _NOW, _PARAMETER = range(8)  # words of the record


class ProofVerdict(enum.IntEnum):
    """The result so far of comparing a resumed rank's steps with the same steps of the process before it."""

    NONE = 0
    """the rank has not resumed"""
    AHEAD = 1
    """steps are still to be made again, and those made so far were the same"""
    SAME = 2
    """all steps made again were the same, bit for bit"""
    ROUNDED = 3
    """the same batches, random numbers and learning rates gave a loss or parameters that differ by rounding"""
    DIFFERENT = 4
    """a step differed by more than rounding"""
    UNVERIFIED = 5
    """no step was made again, or none that could be compared"""

    @property
    def is_final(self) -> bool:
        """Whether nothing more will be compared in this attempt."""
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
    """the restored state of an attached object; the step is then the one at which the rank has resumed"""


@dataclass(frozen=True)
class Proof:
    """The result of the comparison."""

    verdict: ProofVerdict
    step: int = 0
    """the first step that was not the same (n for the n-th step), or the newest one that was compared"""
    steps: int = 0
    """number of steps compared"""
    ahead: int = 0
    """number of steps that are to be made again in all"""
    what: ProofPart = ProofPart.NOTHING
    """what differed first"""
    before: float = float("nan")
    """the loss or the parameter's value in the earlier process; NaN where what differed is no number"""
    now: float = float("nan")
    """the loss or the parameter's value in this process; NaN where what differed is no number"""
    parameter: int = -1
    """index of the parameter or object in the list at `protocol.sampled_names_path`; -1 for none"""


def write_proof(page: Page, proof: Proof) -> None:
    """Write the record into a rank's page. The verdict is written last: once it is there, a reader trusts the rest."""
    q = page.q
    d = page.d
    at = PROOF
    q[at + _STEP] = proof.step
    q[at + _STEPS] = proof.steps
    q[at + _AHEAD] = proof.ahead
    q[at + _WHAT] = proof.what
    d[at + _BEFORE] = proof.before
    d[at + _NOW] = proof.now
    q[at + _PARAMETER] = proof.parameter
    q[at + _VERDICT] = proof.verdict


def read_proof(page: Page) -> Proof:
    """Return the record of a rank's page."""
    q = page.q
    d = page.d
    at = PROOF
    verdict = ProofVerdict(q[at + _VERDICT])
    return Proof(
        verdict=verdict, step=q[at + _STEP], steps=q[at + _STEPS], ahead=q[at + _AHEAD], what=ProofPart(q[at + _WHAT]),
        before=d[at + _BEFORE], now=d[at + _NOW], parameter=q[at + _PARAMETER],
    )  # fmt: skip
