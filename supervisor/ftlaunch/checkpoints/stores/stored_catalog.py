"""Lists, verifies, deletes and brings the checkpoints of a store, for `ftctl checkpoints ADDRESS`.

Runs in the process of `ftctl`, on any machine, beside a job that may be keeping the store. Nothing but `prune` changes
the store. What is said of a store follows from its index, which is one small object; `verify_steps` and `bring_step`
read objects. `stored_catalog_view.py` turns the results into lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ftlaunch.checkpoints.catalog import Watched
from ftlaunch.checkpoints.stores import heartbeat
from ftlaunch.checkpoints.stores import index as indexes
from ftlaunch.checkpoints.stores.fetching import fetch_files, find_damage
from ftlaunch.checkpoints.stores.heartbeat import LivingOwnerError
from ftlaunch.checkpoints.stores.index import StoredStep
from ftlaunch.checkpoints.stores.store import ChangedError, CheckpointStore
from ftlaunch.checkpoints.stores.stored_checkpoints import NOTE
from ftlaunch_contract.checkpoint import health_mark, layout, retention
from ftlaunch_contract.checkpoint.retention import Candidate
from ftlaunch_contract.files import untrusted_json
from ftlaunch_contract.files.regular_file import read_regular


class StoreRefused(Exception):
    """Something cannot be done with a store. The message is a sentence, or the end of one."""


@dataclass(frozen=True)
class StoredEntry:
    """A checkpoint of a store."""

    step: int
    name: str
    """the number of the step; of one that was put aside, its unique name"""
    state: str
    """complete; damaged (verified, or found by a job that refused it); aside (the job has gone back behind it)"""
    problem: str | None
    """what is wrong with it; None: nothing is known to be wrong"""
    bytes: int
    files: int
    health: str
    """normal, abnormal or unknown"""
    verified: bool | None = None
    """whether every byte matches its checksum; None: not read"""

    def data(self) -> dict[str, Any]:
        """Return the entry as `--json` prints it."""
        return {**vars(self), "complete": self.state == "complete"}


@dataclass(frozen=True)
class StoredPruned:
    """What `prune` has deleted."""

    deleted: list[tuple[int, int]]
    """step and bytes of each checkpoint"""
    cleared: int
    """number of objects that interrupted uploads had left"""
    stayed: list[str]
    """a sentence for each object that could not be deleted"""


class StoreCatalog:
    """The checkpoints of one store, as its index had them when it was read."""

    def __init__(self, store: CheckpointStore) -> None:
        """Read the index.

        Raises:
            StoreRefused: there is no index, or it cannot be read.
            OSError: the store does not answer, or refuses.
        """
        found = store.read(indexes.NAME)
        if found is None:
            raise StoreRefused(f"{store.where} is no checkpoint store of ftlaunch: it has no {indexes.NAME}")
        try:
            self.index = indexes.parse(found.data)
        except ValueError as error:
            raise StoreRefused(f"{store.where}/{indexes.NAME} cannot be used: {error}") from None
        self._store = store
        self._version = found.version

    @property
    def where(self) -> str:
        """The address of the store, for people."""
        return self._store.where

    def list_entries(self) -> list[StoredEntry]:
        """Return all checkpoints, newest first; of a step that was put aside, those behind the usable one."""
        entries = [self._entry(step, stored) for step, stored in self.index.steps.items()]
        entries += [
            StoredEntry(
                step=_step_of_aside(name),
                name=name,
                state="aside",
                problem=None,
                bytes=stored.bytes,
                files=len(stored.files),
                health=stored.health,
            )
            for name, stored in self.index.aside.items()
        ]
        return sorted(entries, key=lambda entry: (-entry.step, entry.state == "aside", entry.name))

    def _entry(
        self, step: int, stored: StoredStep, *, is_read: bool = False, problem: str | None = None
    ) -> StoredEntry:
        refused = self.index.refused.get(step)
        damage = problem or (None if is_read else refused)
        return StoredEntry(
            step=step,
            name=str(step),
            state="complete" if damage is None else "damaged",
            problem=damage,
            bytes=stored.bytes,
            files=len(stored.files),
            health=stored.health,
            verified=None if not is_read and refused is None else damage is None,
        )

    # --- reading objects --------------------------------------------------------------------------------------

    def verify_steps(self, step: int | None, watched: Watched) -> Iterator[StoredEntry]:
        """Read every object of the usable steps, newest first, and compare it with its checksum. Nothing is written.

        Args:
            step: which checkpoint; None: all.
            watched: shows the progress of each checkpoint.

        Yields:
            Each checkpoint.

        Raises:
            StoreRefused: there is no such checkpoint.
            OSError: the store does not answer, or refuses.
        """
        found = sorted((number for number in self.index.steps if step in (None, number)), reverse=True)
        if not found:
            raise StoreRefused(self._none_of(step))
        for number in found:
            stored = self.index.steps[number]
            with watched(f"verifying step {number}", stored.bytes) as advance:
                problem = find_damage(self._store, stored, advance)
            yield self._entry(number, stored, is_read=True, problem=problem)

    def _none_of(self, step: int | None) -> str:
        steps = ", ".join(map(str, sorted(self.index.steps))) or "none"
        return f"there is no checkpoint{'' if step is None else f' of step {step}'} in {self.where}; it has {steps}"

    def bring_step(self, step: int, directory: Path, watched: Watched) -> Path:
        """Bring one checkpoint into a directory, and verify it.

        Args:
            step: the step.
            directory: an empty directory.
            watched: shows the progress.

        Returns:
            The directory of the checkpoint, below `directory`.

        Raises:
            StoreRefused: there is no such checkpoint.
            Damaged: it is damaged.
            OSError: the store does not answer, or the directory cannot be written.
        """
        stored = self.index.steps.get(step)
        if stored is None:
            raise StoreRefused(self._none_of(step))
        target = layout.iteration_dir(directory, step)
        target.mkdir()
        with watched(f"bringing step {step}", stored.bytes) as advance:
            fetch_files(self._store, stored, target, advance)
        return target

    # --- pruning ----------------------------------------------------------------------------------------------

    def wait_for_owner(self, pause: Callable[[float], bool], begin_waiting: Callable[[str, float], object]) -> None:
        """Wait until it is sure that no job keeps the store.

        Args:
            pause: as `heartbeat.wait_until_gone` takes it.
            begin_waiting: as `heartbeat.wait_until_gone` takes it.

        Raises:
            StoreRefused: a job keeps it.
            OSError: the store does not answer, or refuses.
        """
        try:
            heartbeat.wait_until_gone(self._store, self.index, pause, begin_waiting)
        except LivingOwnerError as error:
            raise StoreRefused(f"{error}, and deletes what its `keep` says; nothing was deleted") from None

    def prune(self, keep: int, keep_every: int | None, watched: Watched) -> StoredPruned:
        """Delete old checkpoints, and what interrupted uploads have left. Call after `wait_for_owner`.

        Checkpoints that were put aside stay. A job that begins meanwhile makes this fail before anything is deleted.

        Args:
            keep: how many of the newest checkpoints that verify are kept, at least 1. All that are newer than the
                oldest of these are kept as well, damaged or not.
            keep_every: keep each checkpoint whose step is a multiple of this number; None: no others are kept.
            watched: shows the progress of each verification.

        Raises:
            StoreRefused: a job has begun to keep the store.
            OSError: the store does not answer, or refuses. Nothing was deleted.
        """
        number = self._count_until(max(keep, 1), watched)
        candidates = [
            Candidate(step, stored.health == health_mark.NORMAL, stored.needs)
            for step, stored in sorted(self.index.steps.items(), reverse=True)
        ]
        leaving = set(retention.not_kept(candidates, keep=number, keep_every=keep_every))
        kept = replace(
            self.index,
            steps={step: stored for step, stored in self.index.steps.items() if step not in leaving},
            refused={step: why for step, why in self.index.refused.items() if step not in leaving},
        )
        # Listed before the commit: what a job uploads after its own claim, which makes the commit fail, is not in it.
        leftovers = self.index.find_leftovers(self._store.names(indexes.OBJECTS))
        gone = self.index.objects - kept.objects
        deleted = [(step, self.index.steps[step].bytes) for step in sorted(leaving)]
        try:
            self._version = self._store.replace(indexes.NAME, indexes.dump(kept), self._version)
        except ChangedError:
            raise StoreRefused("a job has begun to keep the store meanwhile; nothing was deleted") from None
        self.index = kept
        stayed = [note for name in sorted({*gone, *leftovers}) if (note := self._delete(name)) is not None]
        return StoredPruned(deleted=deleted, cleared=len(leftovers), stayed=stayed)

    def _count_until(self, keep: int, watched: Watched) -> int:
        """Return how many checkpoints there are from the newest to the `keep`-th that verifies. Raises OSError."""
        if not self.index.steps:
            return keep
        for number, entry in enumerate(self.verify_steps(None, watched), 1):
            keep -= entry.verified is True
            if not keep:
                return number
        return len(self.index.steps)

    def _delete(self, name: str) -> str | None:
        """Delete an object. Return a sentence if that fails; the next prune, or start of the job, tries it again."""
        try:
            self._store.delete(name)
        except OSError as error:
            return f"{name} stays: {error.strerror}"
        return None


def find_store_of(directory: Path) -> str | None:
    """Return the address of the store that a job keeps besides a checkpoint directory; None if there is none."""
    try:
        note = untrusted_json.mapping(untrusted_json.parse(read_regular(directory / NOTE)), "the note")
        return untrusted_json.text(note.get("store"), "`store`")
    except (OSError, ValueError):
        return None


def _step_of_aside(name: str) -> int:
    """Return the step of a checkpoint that was put aside, whose name begins with it."""
    step = name.partition("-")[0]
    return int(step) if step.isascii() and step.isdigit() else 0
