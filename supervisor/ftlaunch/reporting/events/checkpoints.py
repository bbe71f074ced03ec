"""Snapshots and checkpoints: committed, failed, deleted, refused; and the saver that makes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch.common.formatting import duration, size
from ftlaunch.reporting.events.base import JobEvent, Note
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.systemd import Priority
from ftlaunch_contract.checkpoint import health_mark, initial, layout
from ftlaunch_contract.checkpoint.initial import InitialCheckpoint
from ftlaunch_contract.checkpoint.writer import MADE_AGAIN
from ftlaunch_contract.pages.memory_state import Memory, reduced_memory

Answer = Mapping[str, Any]
"""An answer of the saver, see checkpoints/saver.py."""


@dataclass(frozen=True)
class CheckpointUnfinished(JobEvent):
    """An earlier run has left a checkpoint that was never committed."""

    name = "checkpoint_unfinished"
    step: int
    path: Path
    """the folder of what was left, which is deleted, but for what is not ours"""

    def fields(self) -> dict[str, Any]:
        """Its step and its folder."""
        return {"step": self.step, "path": str(self.path)}


@dataclass(frozen=True)
class CheckpointCommitted(JobEvent):
    """A step is on storage."""

    name = "checkpoint_committed"
    answer: Answer

    def fields(self) -> dict[str, Any]:
        """What was written, why, where, how fast, and what is known of its numbers."""
        answer = self.answer
        return {
            "step": answer["step"],
            "why": answer.get("why"),
            "bytes": answer["bytes"],
            "seconds": answer["seconds"],
            "health": answer["health"]["status"],
            "path": answer["path"],
        }


@dataclass(frozen=True)
class CheckpointFailed(JobEvent):
    """A step could not be saved."""

    name = "checkpoint_failed"
    priority = Priority.WARNING
    answer: Answer
    directory: str

    def fields(self) -> dict[str, Any]:
        """The step, why it was to be saved, and why it was not."""
        return {"step": self.answer["step"], "why": self.answer.get("why"), "error": self.answer["error"]}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        return f"cannot save step {self.answer['step']} to {self.directory}: {self.answer['error']}"


@dataclass(frozen=True)
class CheckpointDeleted(JobEvent):
    """Retention, or a person by `ftctl checkpoints prune`, has deleted a checkpoint."""

    name = "checkpoint_deleted"
    step: int
    path: Path
    why: str
    """retention | prune | interrupted: only what an interrupted save had left was deleted, by prune"""
    keep: int

    def fields(self) -> dict[str, Any]:
        """Its step and path, why, and how many are kept."""
        return {"step": self.step, "path": str(self.path), "why": self.why, "keep": self.keep}


@dataclass(frozen=True)
class CheckpointMoved(JobEvent):
    """A checkpoint was put aside: by a fresh start, by going back, or as its step was made again."""

    name = "checkpoint_moved"
    step: int
    path: Path
    """where it lay"""
    to: Path
    why: str

    def fields(self) -> dict[str, Any]:
        """Its step, where it was, where it is, and why."""
        return {"step": self.step, "path": str(self.path), "to": str(self.to), "why": self.why}


def of_moves(aside: Path, steps: Iterable[int], why: str) -> Iterator[CheckpointMoved]:
    """The events of checkpoints that were put aside. aside: where they are, in the checkpoint directory."""
    for step in steps:
        to = layout.iteration_dir(aside, step)
        yield CheckpointMoved(step, aside.parent / to.name, to, why)


def of_save(answer: Answer, spec: JobSpec, *, keep: int, after_abnormal: bool) -> Iterator[JobEvent]:
    """The events of a save that has ended.

    keep: how many checkpoints are kept. after_abnormal: the checkpoint before was marked abnormal already.
    """
    if "error" in answer:
        yield CheckpointFailed(answer, str(spec.checkpoint_dir))
        return
    for to in answer.get("displaced", ()):
        yield CheckpointMoved(answer["step"], Path(answer["path"]), Path(to), MADE_AGAIN)
    yield CheckpointCommitted(answer)
    if is_abnormal(answer) and not after_abnormal:  # of several in a row the first is told to people
        yield Note(f"the checkpoint of step {answer['step']} is marked abnormal: {answer['health']['why']}")
    for old in answer["deleted"]:
        yield CheckpointDeleted(old, layout.iteration_dir(spec.checkpoint_dir, old), "retention", keep)
    for note in answer["notes"]:
        yield Note(note)
    if answer.get("why") != "interval":
        yield Note(f"saved step {answer['step']} ({size(answer['bytes'])}) to {answer['path']}")


def is_abnormal(answer: Answer) -> bool:
    """Whether a committed checkpoint is marked abnormal."""
    return bool(answer["health"]["status"] == health_mark.ABNORMAL)


@dataclass(frozen=True)
class SaverDied(JobEvent):
    """The saver is gone and was started again."""

    name = "saver_died"
    priority = Priority.WARNING
    answer: Answer

    def fields(self) -> dict[str, Any]:
        """Its exit status, and the step that it was saving."""
        request = self.answer["request"]
        return {"status": self.answer["status"], "step": request.get("step") if request else None}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        request = self.answer["request"]
        doing = ""
        if request and request["do"] == "go_back":
            doing = " while putting later checkpoints aside"
        elif request and "step" in request:
            doing = f" while saving step {request['step']}"
        elif request:
            doing = " while verifying checkpoints"
        again = ": trying that again" if self.answer["again"] else ""
        return f"the saver died (exit status {self.answer['status']}){doing}{again}"


@dataclass(frozen=True)
class SaverMissing(JobEvent):
    """The saver is gone, and none can be started."""

    name = "saver_missing"
    priority = Priority.WARNING
    why: str | None

    def fields(self) -> dict[str, Any]:
        """The system's reason."""
        return {"why": self.why}

    def sentence(self) -> str:
        """What happens meanwhile."""
        return (
            f"the saver died, and another cannot be started ({self.why}): training goes on, checkpoints wait;"
            " trying again every second"
        )


@dataclass(frozen=True)
class StorageSilent(JobEvent):
    """The saver has done nothing for a while: it is in a system call that does not come back."""

    name = "storage_silent"
    priority = Priority.WARNING
    seconds: float
    place: Path
    newest: int
    """the newest step on storage, or -1"""
    age: float | None
    """seconds since it was committed; None where an earlier run did that"""

    def fields(self) -> dict[str, Any]:
        """How long, and what storage has."""
        return {"seconds": round(self.seconds, 1), "newest": self.newest, "age": self.age and round(self.age, 1)}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        has = "there is no checkpoint yet"
        if self.newest >= 0:
            since = "of an earlier run" if self.age is None else f"{duration(self.age)} old"
            has = f"the newest checkpoint is step {self.newest}, {since}"
        return f"storage has not answered for {duration(self.seconds)} ({self.place}): {has}; waiting for it"


@dataclass(frozen=True)
class StorageAnswers(JobEvent):
    """The saver goes on after `storage_silent`."""

    name = "storage_answers"
    seconds: float

    def fields(self) -> dict[str, Any]:
        """How long it was silent."""
        return {"seconds": round(self.seconds, 1)}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        return f"storage answers again, after {duration(self.seconds)}"


@dataclass(frozen=True)
class CheckpointRejected(JobEvent):
    """A checkpoint was refused on the way to the one that the job resumes from."""

    name = "checkpoint_rejected"
    priority = Priority.WARNING
    entry: Answer
    """step, why, and where it lies now"""
    taken: int
    """the step that the job resumes from, or -1"""

    @property
    def _cost(self) -> int | None:
        return self.entry["step"] - self.taken if self.taken >= 0 else None

    def fields(self) -> dict[str, Any]:
        """Which, why, where it is, and how many steps it cost."""
        entry = self.entry
        return {"step": entry["step"], "why": entry["why"], "to": entry["to"], "steps_lost": self._cost}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        entry, cost = self.entry, self._cost
        older = f"; the next usable one is {cost} steps older" if cost is not None else ""
        return f"checkpoint of step {entry['step']} refused: {entry['why']}; it is now {entry['to']}{older}"


@dataclass(frozen=True)
class Loaded(JobEvent):
    """A job without anything of its own begins with a checkpoint of another."""

    name = "loaded"
    load: InitialCheckpoint
    step: int

    def fields(self) -> dict[str, Any]:
        """Which one."""
        return {"step": self.step, "path": str(self.load.path), "weights_only": self.load.weights_only}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        return initial.beginning(self.load, self.step)


@dataclass(frozen=True)
class MemoryReduced(JobEvent):
    """Memory has less room for snapshots than was asked for."""

    name = "memory_reduced"
    memory: Memory

    def fields(self) -> dict[str, Any]:
        """What there is, and what would be needed."""
        memory = self.memory
        return {"slots": memory.slots, "interval": memory.interval, "needed": memory.needed, "room": memory.room}

    def sentence(self) -> str:
        """What it means."""
        return reduced_memory(self.memory)


@dataclass(frozen=True)
class MemoryRestored(MemoryReduced):
    """A later attempt has found more room."""

    name = "memory_restored"

    def sentence(self) -> str:
        """Nothing: good news is in the journal."""
        return ""


@dataclass(frozen=True)
class MemoryIntervalChanged(JobEvent):
    """The steps between snapshots in memory were fitted to what snapshots cost."""

    name = "memory_interval"
    interval: int
    before: int
    step_seconds: float
    says: bool
    """whether people are told, too"""

    def fields(self) -> dict[str, Any]:
        """The interval now, and the one before."""
        return {"interval": self.interval, "before": self.before}

    def sentence(self) -> str:
        """What a crash may cost."""
        if not self.says:
            return ""
        seconds = duration(self.interval * self.step_seconds)
        return f"snapshots every {self.interval} steps cost less than 1 % of the time; a crash costs up to {seconds}"
