"""Events of the checkpoint store: opened, written, overtaken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ftlaunch.common.formatting import times
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.system.systemd import Priority

Answer = Mapping[str, Any]
"""An answer of the keeper, see checkpoints/stores/keeper.py."""


@dataclass(frozen=True)
class StoreOpened(JobEvent):
    """The job keeps its checkpoints in a store, from now on alone."""

    name = "store_opened"
    answer: Answer

    def fields(self) -> dict[str, Any]:
        """Return the store, its newest step, and what was brought, put aside, refused or forgotten of this machine."""
        answer = self.answer
        return {
            "where": answer["where"],
            "newest": answer["newest"],
            "brought": answer["brought"],
            "strays": answer["strays"],
            "refused": answer["refused"],
            "forgotten": answer["forgotten"],
        }

    def sentence(self) -> str:
        """Return a sentence for the terminal; empty if nothing was brought, put aside, refused or forgotten."""
        answer = self.answer
        parts = [f"step {refused['step']} there is refused: {refused['why']}" for refused in answer["refused"]]
        if answer["strays"]:
            steps = ", ".join(map(str, answer["strays"]))
            parts.append(
                f"the job has gone on elsewhere: step {steps} of this machine is not in {answer['where']},"
                " and is now in quarantine"
            )
        if answer["forgotten"] >= 0:
            parts.append(
                f"the job has gone on elsewhere: step {answer['forgotten']} in the memory of this machine is not used"
            )
        if answer["brought"]:
            parts.append(f"brought step {', '.join(map(str, answer['brought']))} from {answer['where']}")
        return "; ".join(parts)


@dataclass(frozen=True)
class CheckpointStored(JobEvent):
    """Committed steps are in the store."""

    name = "checkpoint_stored"
    answer: Answer
    where: str

    def fields(self) -> dict[str, Any]:
        """Return the steps, their size, how long it took, and the steps that the store does not keep any more."""
        answer = self.answer
        return {
            "steps": list(answer["steps"]),
            "where": self.where,
            "bytes": answer["bytes"],
            "seconds": answer["seconds"],
            "deleted": list(answer["deleted"]),
        }


@dataclass(frozen=True)
class CheckpointsBrought(JobEvent):
    """The store had a better checkpoint than this machine, in the middle of the job."""

    name = "checkpoints_brought"
    answer: Answer
    where: str

    def fields(self) -> dict[str, Any]:
        """Return the store, the steps that were brought from it, and those that are damaged there, too."""
        answer = self.answer
        return {"where": self.where, "steps": list(answer["brought"]), "refused": list(answer["refused"])}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        answer = self.answer
        parts = [
            f"step {refused['step']} in {self.where} is refused: {refused['why']}" for refused in answer["refused"]
        ]
        if answer["brought"]:
            parts.append(f"brought step {', '.join(map(str, answer['brought']))} from {self.where}")
        return "; ".join(parts)


@dataclass(frozen=True)
class CheckpointNotStored(JobEvent):
    """Committed steps could not be brought to the store. They are on this machine."""

    name = "checkpoint_not_stored"
    priority = Priority.WARNING
    where: str
    error: str
    tries: int
    """how often that has failed in a row"""

    def fields(self) -> dict[str, Any]:
        """Return the store, and why it does not have the steps."""
        return {"where": self.where, "error": self.error, "tries": self.tries}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        row = f" ({times(self.tries)} in a row)" if self.tries > 1 else ""
        there = "they are on this machine, and go there with the next one"
        return f"cannot bring checkpoints to {self.where}: {self.error}{row}; {there}"


@dataclass(frozen=True)
class KeeperDied(JobEvent):
    """The process that brings committed steps to the store answers no more, and another one was started."""

    name = "keeper_died"
    priority = Priority.WARNING
    where: str
    status: int | None
    """its exit status; negative: the signal that has killed it; None: it has not ended yet"""

    def fields(self) -> dict[str, Any]:
        """Return the store, and the exit status."""
        return {"where": self.where, "status": self.status}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        return (
            f"the process that brings checkpoints to {self.where} has died (exit status {self.status}): another one"
            " goes on"
        )


@dataclass(frozen=True)
class StoreOvertaken(JobEvent):
    """Another process keeps the store of this job now: this one must not go on."""

    name = "store_overtaken"
    priority = Priority.ERROR
    error: str

    def fields(self) -> dict[str, Any]:
        """Return who has taken over."""
        return {"error": self.error}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        return f"{self.error}: the job goes on there, and is stopped here"
