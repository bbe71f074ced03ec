"""Events about failures: a hang, wrong numbers, the verdict on a failure, the return to a healthy checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch.health.hang_detection import Late, measured
from ftlaunch.health.numerics import NumericFault
from ftlaunch.policy.cause_kinds import HANG
from ftlaunch.policy.failure_diagnosis import Cause
from ftlaunch.policy.restart_policy import Verdict
from ftlaunch.reporting import messages
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.system.systemd import Priority


@dataclass(frozen=True)
class HangSeen(JobEvent):
    """A rank is over its limit; the autopsy begins."""

    name = "hang_seen"
    priority = Priority.WARNING
    late: Late
    autopsy: Path
    """the directory of the autopsy"""

    def fields(self) -> dict[str, Any]:
        """Return the late rank, its step, the broken rule, and the age and the limit in seconds."""
        late = self.late
        return {
            "rule": late.rule,
            "rank": late.rank,
            "step": late.step,
            "age": round(late.age, 3),
            "limit": late.limit,
        }

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        return f"{measured(self.late)}: an autopsy of all ranks goes to {self.autopsy}"


@dataclass(frozen=True)
class IncidentJudged(JobEvent):
    """A failure, and what was decided about it."""

    name = "incident"
    priority = Priority.ERROR
    cause: Cause
    verdict: Verdict
    reached: int
    """the newest step that all ranks had completed"""
    since_progress: float
    """seconds since the job has made its last progress"""
    autopsy: str | None
    """the directory of a hang's autopsy; None: there was no autopsy"""
    followed: bool
    """whether the output of the failed rank is on the terminal already"""
    host: str | None = None
    """the host of the failed rank; None: unknown, or the job has one node"""

    def fields(self) -> dict[str, Any]:
        """Return the cause, the culprit, the verdict, and what is left of the restart budget."""
        cause = self.cause
        verdict = self.verdict
        return {
            "cause": cause.sentence,
            "kind": cause.kind,
            "rank": cause.rank,
            "signature": cause.signature,
            "step": cause.step if cause.kind == HANG else self.reached,
            "verdict": "restart" if verdict.restart else "give up",
            "delay": round(verdict.delay, 3),
            "sentence": verdict.sentence,
            "action": cause.action,
            "restarts_left": verdict.budget.left,
            "hang_restarts_left": verdict.budget.hangs_left,
            "since_progress": round(self.since_progress, 4),
            "trace": cause.trace,
            "autopsy": self.autopsy,
            "host": self.host,
        }

    def lines(self) -> Sequence[str]:
        """Return the traceback of a failed rank whose output is not followed.

        A job that is given up shows the traceback at its end instead.
        """
        if not self.verdict.restart or self.followed:
            return ()
        return messages.excerpt(self.cause.rank, self.cause.trace)

    def sentence(self) -> str:
        """Return the verdict; "" for a job that is given up, which shows the verdict at its end."""
        return self.verdict.sentence if self.verdict.restart else ""


@dataclass(frozen=True)
class Unsound(JobEvent):
    """Something is wrong with the numbers; where it ends the attempt, an incident follows."""

    name = "unsound"
    priority = Priority.WARNING
    fault: NumericFault

    def fields(self) -> dict[str, Any]:
        """Return the fault, its rank and step, and what is done about the fault."""
        fault = self.fault
        return {
            "kind": fault.kind,
            "act": fault.act,
            "rank": fault.rank,
            "step": fault.step,
            "value": None if fault.value is None else f"{fault.value:.9g}",  # JSON has no NaN
            "part": fault.part or None,
            "sentence": fault.sentence,
        }

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal; empty where the job ends, which another event tells."""
        fault = self.fault
        return f"{fault.sentence}; going on (on_{fault.kind}: warn)" if fault.act == "warn" else ""


@dataclass(frozen=True)
class RolledBack(JobEvent):
    """It is decided where a job goes on whose numbers had gone wrong."""

    name = "rolled_back"
    priority = Priority.WARNING
    step: int
    """the step to go on from; -1: the beginning of the job"""
    aside: str
    """the folder in which later checkpoints are now; "": there were none"""
    skipped: Sequence[int] | None = None
    """the first sample that is left out from now on, and the sample after the last; None: no sample is left out"""
    not_skipped: str = ""
    """why samples that were to be left out cannot be; "": nothing has failed"""

    def fields(self) -> dict[str, Any]:
        """Return the step, the folder of later checkpoints, and the samples that are left out."""
        samples = None if self.skipped is None else list(self.skipped)
        return {"step": self.step if self.step >= 0 else None, "aside": self.aside or None, "skipped": samples}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        where = f"to step {self.step}" if self.step >= 0 else "to the beginning: there was no checkpoint yet"
        samples = f"; its samples cannot be skipped ({self.not_skipped})" if self.not_skipped else ""
        if self.skipped is not None:
            begin, end = self.skipped
            samples = f", without samples {begin} to {end - 1}"
        return f"going back {where}{samples}" + (f"; later checkpoints are now in {self.aside}" if self.aside else "")
