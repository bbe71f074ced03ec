"""Events about what the repeated steps after a resume have shown. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

from ftlaunch.health.resume_proof import Deviation, ProofAnswer, ResumeProof, describe_proof
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.system.systemd import Priority
from ftlaunch_contract.pages.proof_record import ProofPart

_WHAT = {
    ProofPart.BATCH: "batch",
    ProofPart.RANDOM: "random numbers",
    ProofPart.RATES: "learning rate",
    ProofPart.LOSS: "loss",
    ProofPart.PARAMETER: "parameter",
    ProofPart.OBJECT: "object",
}


@dataclass(frozen=True)
class ResumeVerified(JobEvent):
    """The steps that were made again after a resume were the same, or the same but for rounding."""

    name = "resume_verified"
    proof: ResumeProof
    parameter: str = ""
    """name of the parameter or the object that differs; empty: none does, or its name is not known"""

    def fields(self) -> dict[str, Any]:
        """Return where the job resumed, how many steps were compared, and what differs by rounding."""
        proof = self.proof
        deviation = proof.deviation
        return {
            "step": proof.resumed,
            "steps": proof.steps,
            "compared": proof.compared,
            "ranks": proof.ranks,
            "answer": proof.answer.value,
            "rounded_at": None if deviation is None else deviation.step,
            "rank": None if deviation is None else deviation.rank,
            "what": None if deviation is None else _WHAT.get(deviation.what),
            "name": self.parameter or None,
            "before": None if deviation is None else _finite(deviation.before),
            "now": None if deviation is None else _finite(deviation.now),
            "sentence": self.sentence(),
        }

    def sentence(self) -> str:
        """Return the same for people."""
        return describe_proof(self.proof, self.parameter)


@dataclass(frozen=True)
class ResumeUnverified(JobEvent):
    """No step was made again after a resume, or none that could be compared."""

    name = "resume_unverified"
    proof: ResumeProof

    def fields(self) -> dict[str, Any]:
        """Return where the job resumed."""
        return {"step": self.proof.resumed, "sentence": self.sentence()}

    def sentence(self) -> str:
        """Return the same for people."""
        return describe_proof(self.proof)


@dataclass(frozen=True)
class ResumeDiffers(JobEvent):
    """What was restored, or a step made again, was another one; where that ends the job, an incident follows."""

    name = "resume_differs"
    priority = Priority.ERROR
    proof: ResumeProof
    parameter: str
    """name of the parameter or the object that differs; empty: none does, or its name is not known"""
    act: str
    """continue or stop"""

    def fields(self) -> dict[str, Any]:
        """Return where the job resumed, what differed first, and what is done about it."""
        deviation = self.deviation
        return {
            "resumed": self.proof.resumed,
            "step": deviation.step,
            "rank": deviation.rank,
            "what": _WHAT.get(deviation.what),
            "name": self.parameter or None,
            "before": _finite(deviation.before),
            "now": _finite(deviation.now),
            "act": self.act,
            "sentence": self.finding,
        }

    @property
    def deviation(self) -> Deviation:
        """What differed first."""
        assert self.proof.deviation is not None, "an answer that is different names what differed"
        return self.proof.deviation

    @property
    def finding(self) -> str:
        """What was found, in a sentence."""
        return describe_proof(self.proof, self.parameter)

    def sentence(self) -> str:
        """Return the finding for people where the job goes on."""
        return f"{self.finding}; --on-difference stop ends such a job" if self.act == "continue" else ""


def of_proof(
    proof: ResumeProof, parameter: str, on_difference: str
) -> ResumeVerified | ResumeUnverified | ResumeDiffers:
    """Return the event that reports a proof.

    Args:
        proof: the proof of a resume.
        parameter: name of the parameter or the object that differs; "": none differs, or its name is unknown.
        on_difference: "continue" or "stop", as the job is set.
    """
    if proof.answer is ProofAnswer.DIFFERENT:
        return ResumeDiffers(proof, parameter, on_difference)
    if proof.answer is ProofAnswer.UNVERIFIED:
        return ResumeUnverified(proof)
    return ResumeVerified(proof, parameter)


def _finite(value: float) -> float | None:
    """Return the value as JSON can say it: JSON has neither NaN nor infinity."""
    return value if isfinite(value) else None
