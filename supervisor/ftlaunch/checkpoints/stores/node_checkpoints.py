"""Checkpoints of a job whose nodes have checkpoint directories of their own: only the store has them whole.

Each node's directory is a cache. A save goes from all nodes into one folder of the store, and the head commits it:

    node.upload(staging, folder)                          # on each node: the shards and part files of its ranks
    head.download_parts(folder, directory, names)         # the part files of the nodes, which are joined there
    head.commit_step(step, folder, directory, keep)       # uploads what the head has of it, and commits

A resume takes the same step into the directory of the head and of each node:

    head.bring_newest()                                   # before the head's saver looks for a checkpoint
    node.fetch(step, token)                               # before ranks resume from the step there

The calls block until the store has answered.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from ftlaunch.checkpoints.stores import index as indexes
from ftlaunch.checkpoints.stores.fetching import fetch_object
from ftlaunch.checkpoints.stores.index import Index, StoredFile, StoredStep
from ftlaunch.checkpoints.stores.sending import send_files
from ftlaunch.checkpoints.stores.store import Spent
from ftlaunch.checkpoints.stores.stored_checkpoints import (
    SIDE_FILES,
    OvertakenError,
    RefusedStep,
    StoredCheckpoints,
)
from ftlaunch_contract.checkpoint import health_mark, layout, metadata, verify
from ftlaunch_contract.checkpoint.retention import remove_ours
from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.files import atomic, checksums
from ftlaunch_contract.progress import ignore

_THREADS = 4  # files that are received at the same time
_LOCK = ".cache.lock"  # in a node's directory, which agents of one machine may share


@dataclass(frozen=True)
class CommittedStep:
    """What `commit_step` has done."""

    bytes: int
    """size of the step's files"""
    deleted: tuple[int, ...]
    """the steps that the store does not keep any more"""
    notes: tuple[str, ...] = ()
    """sentences on what could not be deleted"""


class CachedCheckpoints(StoredCheckpoints):
    """The checkpoints of one job in one store, of which a directory is a cache."""

    def _fetch_into_cache(self, steps: Iterable[int]) -> RefusedStep | None:
        """Fetch steps of which the directory has no sound copy. Return the first that is damaged in the store.

        Raises:
            OvertakenError: another process keeps the store now.
            ForeignStoreError: another job has taken the store meanwhile, or the index cannot be read any more.
            OSError: the store does not answer, or the directory cannot be written.
        """
        for step in steps:
            final = layout.iteration_dir(self._directory, step)
            if final.exists() and not self._is_copy(step, final):
                _remove(final)
            if (damage := self._fetch_all([step])) is not None:
                return damage
        return None

    def _is_copy(self, step: int, path: Path) -> bool:
        """Return whether a checkpoint of the directory is the store's, and whole. Raises OSError."""
        if self._is_to_upload(step, path):
            return False
        try:
            verify.verify(path)
        except Damaged:
            return False
        return True

    def _remove_others(self, wanted: set[int]) -> None:
        """Remove the copies of other steps than `wanted` from the directory. Raises OSError."""
        for step, path in layout.list_iterations(self._directory):
            if step not in wanted and not self._is_to_upload(step, path):
                _remove(path)


class HeadCheckpoints(CachedCheckpoints):
    """The side of the head, whose keeper alone commits. Call after `claim`.

    Every method may raise OvertakenError, if another process keeps the store now, ForeignStoreError, and OSError.
    """

    _lives: tuple[str, ...] = ()

    def begin_life(self, name: str, adopted: str = "") -> tuple[str, ...]:
        """Add this life of the job to the index.

        Snapshots in the memory of nodes count only if the index has their life. The first commit that changes the
        stored steps takes the earlier lives out.

        Until then the job may still go on from the memory of an earlier life, on this start or the next.

        Args:
            name: the random name of the life.
            adopted: the name of an earlier life whose ranks may run on as this one's; empty: there is none. It counts
                only if the store knows it, because the job may have gone on elsewhere since.

        Returns:
            The lives whose memory the job may go on from, this one included.
        """
        known = self._index.lives
        self._lives = (adopted, name) if adopted in known else (name,)
        lives = tuple(dict.fromkeys([*known, *self._lives]))
        super()._commit(replace(self._index, lives=lives))
        return lives

    def _commit(self, index: Index) -> None:
        """Replace the index as StoredCheckpoints does.

        Once the steps have changed, only the memory of this life counts; on one node, which begins none, no memory.
        """
        is_claimed = self._index.term > 0
        if is_claimed and index.steps != self._index.steps:
            index = replace(index, lives=self._lives)
        super()._commit(index)

    def bring_newest(self, healthy_before: int | None = None) -> list[RefusedStep]:
        """Bring the newest step of the store, and the steps that a resume from there needs. Older copies go.

        Steps that only the directory has, because all nodes shared it when they were saved, are stored before that.

        Args:
            healthy_before: only steps before this one that are marked healthy count, and no copy goes; None: all count.

        Returns:
            The steps that are damaged in the store: a newest step, in whose place the next older one was tried, or a
            step that a resume from there needs, without which that was tried again.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._settle()
        self._store_newer()
        refused: list[RefusedStep] = []
        while candidates := self._candidates(healthy_before):
            step = max(candidates)
            wanted = {step, *self._index.steps[step].needs} & self._usable()
            damage = self._fetch_into_cache(sorted(wanted))
            if damage is None:
                if healthy_before is None:
                    self._remove_others(wanted)
                break
            refused.append(damage)
        return refused

    def _candidates(self, healthy_before: int | None) -> set[int]:
        if healthy_before is None:
            return self._usable()
        return {step for step in self._healthy() if step < healthy_before}

    def _store_newer(self) -> None:
        for step, path in reversed(layout.list_iterations(self._directory)):
            if step > self.newest and self._is_to_upload(step, path):
                stored = self._upload(step, path)
                if stored is not None:
                    self._commit_step(step, stored)

    def download_parts(self, folder: str, directory: Path, names: Iterable[str]) -> None:
        """Download part files of other nodes.

        Args:
            folder: where the nodes have uploaded them.
            directory: where they are to be joined.
            names: their names.
        """

        def download(name: str) -> None:
            try:
                fetch_object(self._store, f"{folder}/{name}", directory / name)
            except FileNotFoundError:
                raise OSError(errno.EIO, f"{folder}/{name} is not in {self._store.where} any more") from None

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(download, names))

    def commit_step(
        self,
        step: int,
        folder: str,
        directory: Path,
        keep: int,
        keep_every: int | None = None,
        spent: Spent = ignore,
    ) -> CommittedStep:
        """Upload what the head has of a step, and commit the step. Later steps are put aside, and old ones go.

        Args:
            step: the step.
            folder: where the nodes have uploaded their shards.
            directory: has metadata.json, and all files that are not in the folder yet.
            keep: how many checkpoints to keep.
            keep_every: steps; a checkpoint at a multiple is kept. 0 or None: no such steps.
            spent: called with the bytes of each piece that is sent.

        Raises:
            Damaged: metadata.json cannot be used.
        """
        found = verify.read_metadata(directory)
        content = (directory / layout.METADATA).read_bytes()
        entries: dict[str, tuple[int, list[str]]] = {
            name: (entry["bytes"], entry[checksums.NAME]) for name, entry in found["files"].items()
        }
        entries[layout.METADATA] = len(content), checksums.of_bytes(content)
        here = [directory / name for name in entries if (directory / name).exists()]
        send_files(self._store, here, folder, spent)
        files = {
            name: StoredFile(object=f"{folder}/{name}", bytes=size, digest=checksums.of_blocks(digests))
            for name, (size, digests) in entries.items()
        }
        health = health_mark.of(found)["status"]
        stored = StoredStep(files=files, health=health, needs=metadata.trainings(found).ends)
        self.put_aside(above=step)  # what the job has gone back behind
        self._commit_step(step, stored)
        deleted: list[int] = []
        notes: tuple[str, ...] = ()
        try:
            self.delete_folder(folder)  # of it only part files are left that no checkpoint has
            self._delete_abandoned()
            deleted = self._retire((step,), keep=keep, keep_every=keep_every)
        except OSError as error:  # the step is committed all the same
            why = error.strerror or error
            notes = (f"what is not needed any more stays in {self._store.where}: {why}",)
        return CommittedStep(bytes=stored.bytes, deleted=tuple(deleted), notes=notes)

    def check(self, step: int) -> RefusedStep | None:
        """Fetch a step once more, because a node could not use it. Return what is wrong with it in the store, if so.

        A step that is damaged there is not usable from now on. If the store has it whole (None), the fault is the
        node's.
        """
        self._settle()
        final = layout.iteration_dir(self._directory, step)
        if final.exists():
            _remove(final)
        return self._fetch_all([step])

    def delete_folder(self, folder: str) -> None:
        """Delete what was uploaded into a folder, except what the index names."""
        used = self._index.objects
        for name in list(self._store.names(f"{folder}/")):
            if name not in used:
                self._store.delete(name)


class NodeCheckpoints(CachedCheckpoints):
    """The side of a node. It reads the index, and never writes it."""

    def upload(self, staging: Path, folder: str, spent: Spent = ignore) -> None:
        """Upload what this node has written of a step, and remove it from the directory. Raises OSError.

        Args:
            staging: the directory that the node's saver has written into, for this upload alone.
            folder: where the head wants to have it in the store.
            spent: called with the bytes of each piece that is sent.
        """
        try:
            written = [path for _, directory in layout.list_incomplete(staging) for path in directory.iterdir()]
            if not written:
                raise OSError(errno.ENOENT, f"what was written in {staging} is gone")
            send_files(self._store, [path for path in written if path.name != layout.MARK], folder, spent)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def fetch(self, step: int, token: str) -> None:
        """Bring a step into the directory, and the steps that a resume from there needs. Older copies go.

        Args:
            step: the step, which the head has found to be usable.
            token: of the head's claim.

        Raises:
            Damaged: the store has nothing of the step that this node can use.
            OvertakenError: another process has taken the store over.
            ForeignStoreError: the index is another job's, or cannot be read.
            OSError: the store does not answer, or the directory cannot be written.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._read_index(token)
        if step not in self._usable():
            raise Damaged(f"{self._store.where} has no step {step} any more")
        wanted = {step, *self._index.steps[step].needs} & self._usable()
        with self._locked():
            damage = self._fetch_into_cache(sorted(wanted)) and self._fetch_into_cache(sorted(wanted))
            if damage is not None:  # twice: not a fault of the way here
                raise Damaged(damage.why)
            self._remove_others(wanted)

    def _read_index(self, token: str) -> None:
        found = self._store.read(indexes.NAME)
        if found is None:
            raise OvertakenError(self._why_overtaken(None))
        self._index = self._parsed(found.data)
        if self._index.claim != token:
            raise OvertakenError(self._why_overtaken(found.data))

    def _refuse_damaged(self, step: int, damage: Damaged) -> RefusedStep:
        """Return the damage; the head takes the step out of the index."""
        return RefusedStep(step, str(damage))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the directory's lock, because another agent of this machine may have the same directory."""
        lock = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def follow(self, beside: Mapping[str, str]) -> None:
        """Make the small files beside the checkpoints those of the head. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for name in SIDE_FILES:
            path = self._directory / name
            if name in beside:
                atomic.replace_durable(path, beside[name].encode())
            else:
                path.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    """Remove a copy: whole, or not at all for a reader. Raises OSError."""
    aside = path.with_name(f"{path.name}{layout.INCOMPLETE}")
    if aside.exists():
        remove_ours(aside)
    path.rename(aside)
    if strangers := remove_ours(aside):
        raise OSError(errno.EEXIST, strangers)
