"""Events about snapshots and checkpoints (committed, failed, moved, deleted, refused), and about the saver. Pure."""

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
from ftlaunch_contract.checkpoint.writer import REPEATED_STEP
from ftlaunch_contract.pages.memory_state import Memory, reduced_memory

Answer = Mapping[str, Any]
"""An answer of the saver, with the keys that `checkpoints/saver.py` lists."""


@dataclass(frozen=True)
class CheckpointUnfinished(JobEvent):
    """An earlier run has left a checkpoint that was never committed."""

    name = "checkpoint_unfinished"
    step: int
    path: Path
    """the folder with the remains, whose files are deleted unless others have put them there"""

    def fields(self) -> dict[str, Any]:
        """Return the step and the folder of the unfinished checkpoint."""
        return {"step": self.step, "path": str(self.path)}


@dataclass(frozen=True)
class CheckpointCommitted(JobEvent):
    """A step is on storage."""

    name = "checkpoint_committed"
    answer: Answer

    def fields(self) -> dict[str, Any]:
        """Return what was written, why, where, how fast, and the health of the step's numbers."""
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
        """Return the step, the reason for the save, and the error."""
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
    """retention, prune, cache (to make room in the folder beside a store, which has the checkpoint), or interrupted
    (prune has deleted the remains of an interrupted save)"""
    keep: int
    """number of checkpoints that are kept"""

    def fields(self) -> dict[str, Any]:
        """Return the step, the path, the reason, and how many checkpoints are kept."""
        return {"step": self.step, "path": str(self.path), "why": self.why, "keep": self.keep}


@dataclass(frozen=True)
class CheckpointMoved(JobEvent):
    """A checkpoint was put aside: by a fresh start, by going back, or as its step was made again."""

    name = "checkpoint_moved"
    step: int
    path: Path
    """the old place of the checkpoint"""
    to: Path
    """the new place of the checkpoint"""
    why: str

    def fields(self) -> dict[str, Any]:
        """Return the step, the old place, the new place, and the reason."""
        return {"step": self.step, "path": str(self.path), "to": str(self.to), "why": self.why}


def of_moves(aside: Path, steps: Iterable[int], why: str) -> Iterator[CheckpointMoved]:
    """Yield the events of checkpoints that were put aside.

    Args:
        aside: the folder, inside the checkpoint directory, in which the checkpoints lie now.
        steps: the steps of the checkpoints.
        why: why they were moved.
    """
    for step in steps:
        to = layout.iteration_dir(aside, step)
        yield CheckpointMoved(step=step, path=aside.parent / to.name, to=to, why=why)


def of_save(answer: Answer, spec: JobSpec, *, keep: int, after_abnormal: bool) -> Iterator[JobEvent]:
    """Yield the events of a save that has ended.

    Args:
        answer: the saver's answer to the save.
        spec: the job.
        keep: number of checkpoints that are kept.
        after_abnormal: whether the checkpoint before was marked abnormal, so that people know already.
    """
    if "error" in answer:
        yield CheckpointFailed(answer, str(spec.checkpoint_dir))
        return
    for to in answer.get("displaced", ()):
        yield CheckpointMoved(step=answer["step"], path=Path(answer["path"]), to=Path(to), why=REPEATED_STEP)
    yield CheckpointCommitted(answer)
    if is_abnormal(answer) and not after_abnormal:  # only the first of several in a row is shown on the terminal
        yield Note(f"the checkpoint of step {answer['step']} is marked abnormal: {answer['health']['why']}")
    for old in answer["deleted"]:
        yield CheckpointDeleted(
            step=old, path=layout.iteration_dir(spec.checkpoint_dir, old), why="retention", keep=keep
        )
    for old in answer.get("evicted", ()):
        yield CheckpointDeleted(step=old, path=layout.iteration_dir(spec.checkpoint_dir, old), why="cache", keep=keep)
    for note in answer["notes"]:
        yield Note(note)
    if answer.get("why") != "interval":
        yield Note(f"saved step {answer['step']} ({size(answer['bytes'])}) to {answer['path']}")


def is_abnormal(answer: Answer) -> bool:
    """Return whether the committed checkpoint of an answer is marked abnormal."""
    return bool(answer["health"]["status"] == health_mark.ABNORMAL)


@dataclass(frozen=True)
class SaverDied(JobEvent):
    """The saver is gone and was started again."""

    name = "saver_died"
    priority = Priority.WARNING
    answer: Answer

    def fields(self) -> dict[str, Any]:
        """Return the saver's exit status, and the step that the saver was saving."""
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
        retry = ": trying that again" if self.answer["again"] else ""
        return f"the saver died (exit status {self.answer['status']}){doing}{retry}"


@dataclass(frozen=True)
class SaverMissing(JobEvent):
    """The saver is gone, and none can be started."""

    name = "saver_missing"
    priority = Priority.WARNING
    why: str | None

    def fields(self) -> dict[str, Any]:
        """Return the system's reason."""
        return {"why": self.why}

    def sentence(self) -> str:
        """Return what is wrong, and what happens meanwhile."""
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
    """seconds since `newest` was committed; None: an earlier run has committed `newest`"""

    def fields(self) -> dict[str, Any]:
        """Return the length of the silence in seconds, the newest step on storage, and its age in seconds."""
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
        """Return the length of the silence in seconds."""
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
    """the step of the checkpoint, why it was refused, and where it lies now: `step`, `why`, `to`"""
    chosen: int
    """the step that the job resumes from, or -1"""

    @property
    def _cost(self) -> int | None:
        return self.entry["step"] - self.chosen if self.chosen >= 0 else None

    def fields(self) -> dict[str, Any]:
        """Return the step, the reason, the new place of the checkpoint, and how many steps the refusal costs."""
        entry = self.entry
        return {"step": entry["step"], "why": entry["why"], "to": entry["to"], "steps_lost": self._cost}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        entry = self.entry
        cost = self._cost
        older = f"; the next usable one is {cost} steps older" if cost is not None else ""
        return f"checkpoint of step {entry['step']} refused: {entry['why']}; it is now {entry['to']}{older}"


@dataclass(frozen=True)
class Loaded(JobEvent):
    """A job without anything of its own begins with a checkpoint of another."""

    name = "loaded"
    load: InitialCheckpoint
    step: int

    def fields(self) -> dict[str, Any]:
        """Return the step, the path, and whether only the weights are taken."""
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
        """Return how many snapshots memory holds, the steps between them, and the bytes needed and available."""
        memory = self.memory
        return {"slots": memory.slots, "interval": memory.interval, "needed": memory.needed, "room": memory.room}

    def sentence(self) -> str:
        """Return what the lack of room means."""
        return reduced_memory(self.memory)


@dataclass(frozen=True)
class MemoryRestored(MemoryReduced):
    """A later attempt has found more room."""

    name = "memory_restored"

    def sentence(self) -> str:
        """Return "": good news is in the journal only."""
        return ""


@dataclass(frozen=True)
class MemoryIntervalChanged(JobEvent):
    """The steps between snapshots in memory were fitted to what snapshots cost."""

    name = "memory_interval"
    interval: int
    """steps between snapshots from now on"""
    before: int
    """steps between snapshots before"""
    step_seconds: float
    says: bool
    """whether the change is shown on the terminal, too"""

    def fields(self) -> dict[str, Any]:
        """Return the new interval and the old one."""
        return {"interval": self.interval, "before": self.before}

    def sentence(self) -> str:
        """Return what a crash may cost from now on; "" if the change is for the journal only."""
        if not self.says:
            return ""
        seconds = duration(self.interval * self.step_seconds)
        return f"snapshots every {self.interval} steps cost less than 1 % of the time; a crash costs up to {seconds}"
