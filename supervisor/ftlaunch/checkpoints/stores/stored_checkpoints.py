"""Keeps a job's committed checkpoints in a checkpoint store, and brings them back to a machine that has none.

    stored = StoredCheckpoints(store, directory, job, owner)
    stored.find_other_owner()   # who may still keep it: `heartbeat.py` finds out
    stored.claim()              # from now on no other process can commit there
    stored.quarantine_strays(forget_memory)  # what the job, which went on elsewhere, does not have
    stored.bring(newer_than=-1) # before anything looks at the directory
    stored.publish(keep)        # again and again, after each commit in the directory

The directory is what the job works with; the store follows it. A step is uploaded file by file, under names that nobody
has used before, and committed by one conditional replacement of the index (`index.py`).

Keeper: the process that carries this out for one job (`keeper.py`), and the only user of this module. The calls block
    until the store has answered.
Owner: host and pid of the keeper that the index names. Only people read it.
Term: a number in the index, one higher for each keeper. It is a part of the names of objects.
Claim: the moment at which a keeper writes its owner, its term and a random token into the index. A keeper that runs
    elsewhere is overtaken by that: the version of the index that it knows is gone, so its next commit fails, and it has
    changed nothing that anybody reads.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ftlaunch.checkpoints.stores import index as indexes
from ftlaunch.checkpoints.stores.fetching import fetch_files
from ftlaunch.checkpoints.stores.index import Index, StoredFile, StoredStep
from ftlaunch.checkpoints.stores.sending import send_files
from ftlaunch.checkpoints.stores.store import ChangedError, CheckpointStore, Spent, replace_object
from ftlaunch_contract.checkpoint import health_mark, layout, metadata, retention, verify
from ftlaunch_contract.checkpoint.retention import Candidate
from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.files import atomic, checksums, untrusted_json
from ftlaunch_contract.files.regular_file import read_regular
from ftlaunch_contract.progress import ignore

_MOST_TRIES = 3  # to go on in the place of a process whose last commits may reach the store late
NOTE = "store.json"
"""name of the file in the checkpoint directory that lists the tokens of the claims that were made for the directory"""
WHY_STRAY = "the job has gone on from its store on another machine since this was saved, and the store does not have it"
SIDE_FILES = (layout.SEED, layout.SKIPPED)
"""names of small files in the checkpoint directory that a resume needs besides the checkpoint"""
_UNCONDITIONAL = (
    "its server does not keep to conditions (If-None-Match, If-Match), so that a machine that was taken for lost could"
    " still write there; use another server, or a newer version of this one"
)


class OvertakenError(Exception):
    """Another process keeps the store now. The message is a sentence."""


class ForeignStoreError(Exception):
    """The store has checkpoints of another job, or an index that cannot be read. The message is a sentence."""


@dataclass(frozen=True)
class RefusedStep:
    """A checkpoint of the store that was refused."""

    step: int
    why: str
    """a part of a sentence"""


@dataclass(frozen=True)
class Brought:
    """What was brought to the directory after the start."""

    steps: tuple[int, ...] = ()
    refused: tuple[RefusedStep, ...] = ()


@dataclass(frozen=True)
class Published:
    """What `publish` has done."""

    steps: tuple[int, ...] = ()
    """the steps that were committed to the store"""
    bytes: int = 0
    """size of their files"""
    deleted: tuple[int, ...] = ()
    """the steps that the store does not keep any more"""


def new_folder(step: int, term: int) -> str:
    """Return a name that nobody has used before, with which the names of the objects of a step begin.

    Args:
        step: the step.
        term: the term of the keeper that is to commit the step.
    """
    return f"{indexes.OBJECTS}{layout.iteration_dir(Path(), step).name}-{term}-{secrets.token_hex(4)}"


class StoredCheckpoints:
    """The checkpoints of one job in one store."""

    def __init__(self, store: CheckpointStore, directory: Path, job: str, owner: str, spent: Spent = ignore) -> None:
        """Ask nothing of the store yet.

        Args:
            store: the place.
            directory: the job's checkpoint directory on this machine; the caller's job holds its lock.
            job: id of the job.
            owner: host and pid of this process, for people.
            spent: called with the bytes of each piece that is sent.
        """
        self._store = store
        self._directory = directory
        self._job = job
        self._owner = owner
        self._spent = spent
        self._index = Index(job, 0, owner)
        self._version: str | None = None
        self._went_on_elsewhere = False
        self._abandoned: set[str] = set()  # folders of uploads that were not committed
        self._is_uncertain = False  # whether the answer to a commit never came

    @property
    def where(self) -> str:
        """The address of the store, for people."""
        return self._store.where

    @property
    def newest(self) -> int:
        """The newest step of the store that was not refused; -1 if there is none, and before `claim`."""
        return max(self._usable(), default=-1)

    @property
    def all_damaged(self) -> list[int]:
        """The steps of the store if each of them was refused as damaged; empty if one is usable, or there is none."""
        return [] if self._usable() else sorted(self._index.steps)

    @property
    def term(self) -> int:
        """The term of the index: 0 before `claim`."""
        return self._index.term

    @property
    def digests(self) -> dict[str, str]:
        """The checksum of metadata.json of each step of the store that was not refused, by the step in digits."""
        return self._index.digests

    @property
    def token(self) -> str:
        """The token of the claim; empty before `claim`."""
        return self._index.claim

    def _usable(self) -> set[int]:
        """Return the steps of the index that were not refused. Steps put aside are not among them."""
        return set(self._index.steps) - set(self._index.refused)

    # --- whose the store is -----------------------------------------------------------------------------------

    def find_other_owner(self) -> Index | None:
        """Return the index if a process of another directory has kept the store last, which may still run.

        A process of this directory does not: the caller's job holds the directory's lock.

        Raises:
            ForeignStoreError: the store has checkpoints of another job, or an index that cannot be read.
            OSError: the store does not answer, or refuses.
        """
        found = self._store.read(indexes.NAME)
        index = None if found is None else self._parsed(found.data)
        return None if index is None or index.claim in self._noted_claims() else index

    def claim(self) -> bool:
        """Take the store over: a process of this job that still runs elsewhere can commit nothing from now on.

        A file in the directory (`NOTE`) lists the token of the claim before the claim is made. The next start finds
        out by it whether the job has run anywhere else in between: the index then has a token that is not listed.

        Returns:
            Whether nobody has kept the store before.

        Raises:
            ForeignStoreError: the store has checkpoints of another job, or an index that cannot be read.
            OvertakenError: another process took it over at the same moment.
            OSError: the store does not answer, refuses, or replaces objects whatever their version.
        """
        found = self._store.read(indexes.NAME)
        before = Index(self._job, 0, self._owner) if found is None else self._parsed(found.data)
        known = self._noted_claims()
        self._went_on_elsewhere = found is not None and before.claim not in known
        self._probe_conditions(before.term)
        token = secrets.token_hex(8)
        # This process may end at any moment, and the next start must then judge as this one did. The earlier token
        # stays listed if it was; if the job went on elsewhere, the new one is listed once strays are out of the way.
        if not self._went_on_elsewhere:
            self._note_claims([before.claim, token])
        self._version = None if found is None else found.version
        self._take_over(before, token)
        return found is None

    def claim_again(self, token: str, *, keep_uploads: bool) -> None:
        """Go on with the claim of an earlier process of this job and this directory, which has died.

        The term becomes higher, so that a commit of that process which reaches the store late finds another index.

        Args:
            token: of the claim.
            keep_uploads: whether nothing is deleted that was uploaded and not committed.

        Raises:
            OvertakenError: a process elsewhere keeps the store now, or somebody has removed the index.
            ForeignStoreError: what is there instead is another job's index, or cannot be read.
            OSError: the store does not answer, or refuses.
        """
        self._index = replace(self._index, claim=token)
        for tries_left in reversed(range(_MOST_TRIES)):
            self._is_uncertain = True
            self._settle()
            try:
                self._take_over(self._index, token, keep_uploads=keep_uploads)
            except OvertakenError:  # by a late commit of the process that has died: `_settle` knows
                if not tries_left:
                    raise
            else:
                return

    def _take_over(self, before: Index, token: str, *, keep_uploads: bool = False) -> None:
        """Become the owner that the index names, and delete what others have uploaded and not committed.

        Raises as `_commit` does.
        """
        # Listed before the claim and deleted after it: a process that takes over later uploads only once its own claim
        # has overtaken this one, so nothing of it is in the list, however long this process is frozen in between.
        leftovers = [] if keep_uploads else before.find_leftovers(self._store.names(indexes.OBJECTS))
        self._commit(before.with_owner(self._owner, token))
        for name in leftovers:
            self._store.delete(name)

    def _probe_conditions(self, term: int) -> None:
        """Find out whether the store replaces an object only on the condition that is asked for.

        Some servers that speak S3 ignore one condition, or both, and say nothing. Two machines could commit there.

        Args:
            term: the term of the index that is to be claimed.

        Raises:
            OSError: it ignores a condition, does not answer, or refuses.
        """
        name = f"{indexes.PROBE}{term}-{secrets.token_hex(8)}"
        is_kept = self._keeps_to_conditions(name)
        self._store.delete(name)
        if not is_kept:
            raise OSError(errno.EOPNOTSUPP, _UNCONDITIONAL)

    def _keeps_to_conditions(self, name: str) -> bool:
        """Replace an object on conditions that are met, and on some that are not. Raises OSError."""
        try:
            version = replace_object(self._store, name, b"1", None)
            replace_object(self._store, name, b"2", version)
        except ChangedError:
            return False
        for stale in (None, version):
            try:
                self._store.replace(name, b"3", stale)
            except ChangedError:
                continue
            return False
        return True

    def _noted_claims(self) -> list[str]:
        """Return the tokens of the claims that were made for this directory; empty where no note can be read."""
        try:
            note = untrusted_json.mapping(untrusted_json.parse(read_regular(self._directory / NOTE)), "the note")
        except (FileNotFoundError, ValueError):
            return []
        return [token for token in note.get("claims", []) if isinstance(token, str)]

    def _note_claims(self, tokens: list[str]) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        content = {"store": self._store.where, "claims": tokens}
        atomic.replace_durable(self._directory / NOTE, json.dumps(content).encode())

    @property
    def went_on_elsewhere(self) -> bool:
        """Whether `claim` found that another machine has kept the store since this directory was used."""
        return self._went_on_elsewhere

    def quarantine_strays(self, forget_memory: Callable[[], None]) -> list[int]:
        """Move checkpoints of the directory that the store does not have into the directory's quarantine.

        Nothing is moved unless `claim` found that the job has gone on elsewhere since this directory was used. There,
        the job may have begun anew or gone back, so that these checkpoints are of another training, and so are
        snapshots in memory. The claim is noted after that: a start that is cut off in between begins with this again.
        Call after `claim`.

        Args:
            forget_memory: called if the job has gone on elsewhere; deletes the snapshots in this machine's memory.

        Returns:
            The steps that were moved, newest first.

        Raises:
            OSError: a checkpoint cannot be moved, or the claim cannot be noted.
        """
        if not self._went_on_elsewhere:
            return []
        forget_memory()
        strays = [
            (step, path) for step, path in layout.list_iterations(self._directory) if self._is_to_upload(step, path)
        ]
        for _, path in strays:
            layout.quarantine(self._directory, path, f"{WHY_STRAY} ({self._store.where})")
        for name in SIDE_FILES:  # `bring_beside` writes those of the store
            (self._directory / name).unlink(missing_ok=True)
        self._note_claims([self._index.claim])
        return [step for step, _ in strays]

    def _parsed(self, data: bytes) -> Index:
        try:
            index = indexes.parse(data)
        except ValueError as error:
            raise ForeignStoreError(f"cannot use {self._store.where}/{indexes.NAME}: {error}") from None
        if index.job != self._job:
            raise ForeignStoreError(
                f"cannot use {self._store.where}: it has the checkpoints of job {index.job}, and this is job"
                f" {self._job}; name another prefix, or give `--job-id {index.job}` to go on with that job"
            )
        return index

    def _commit(self, index: Index) -> None:
        """Replace the index, unless another process has replaced it.

        Raises:
            OvertakenError: another process has replaced it, or somebody has removed it.
            ForeignStoreError: what is there instead is another job's index, or cannot be read.
            OSError: the store does not answer, or refuses.
        """
        data = indexes.dump(index)
        try:
            self._version = replace_object(self._store, indexes.NAME, data, self._version)
        except ChangedError:
            found = self._store.read(indexes.NAME)
            raise OvertakenError(self._why_overtaken(None if found is None else found.data)) from None
        except OSError:
            self._is_uncertain = True
            raise
        self._index = index
        self._abandoned -= {str(PurePosixPath(name).parent) for name in index.objects}

    def _settle(self) -> None:
        """Find out whether a commit whose answer never came was carried out, and go on from what the store has.

        Tried without: the next commit met the version that this process had made itself, and the job was stopped as one
        that another machine had overtaken.

        Raises:
            OvertakenError: another process keeps the store now, or somebody has removed the index.
            ForeignStoreError: what is there instead is another job's index, or cannot be read.
            OSError: the store does not answer, or refuses.
        """
        if not self._is_uncertain:
            return
        found = self._store.read(indexes.NAME)
        index = None if found is None else self._parsed(found.data)
        if found is None or index is None or index.claim != self._index.claim:
            raise OvertakenError(self._why_overtaken(None if found is None else found.data))
        self._index = index
        self._version = found.version
        self._is_uncertain = False

    def _why_overtaken(self, data: bytes | None) -> str:
        """Return why this process cannot commit, as a sentence. Raises ForeignStoreError.

        Args:
            data: the index that the store has now; None if there is none.
        """
        if data is None:
            return f"{self._store.where}/{indexes.NAME} was removed while this job ran"
        index = self._parsed(data)
        return f"{index.owner} has taken over the checkpoints in {self._store.where}"

    # --- from the store to the directory ----------------------------------------------------------------------

    def bring(self, newer_than: int) -> list[RefusedStep]:
        """Bring what a resume needs, and the directory lacks: the newest step, and the steps that it needs.

        A step needs others if the process had made trainings before this one: a resume reads the checkpoints at which
        these ended. If the newest step is not marked healthy, the newest healthy one comes, too. Call after `claim`.

        Args:
            newer_than: a step. Nothing is brought unless the newest step of the store is above this one, and above the
                newest of the directory. -1: any step will do.

        Returns:
            The checkpoints that were refused on the way; the next older one was taken instead.

        Raises:
            OvertakenError: another process keeps the store now.
            ForeignStoreError: another job has taken the store meanwhile, or the index cannot be read any more.
            OSError: the store does not answer, or the directory cannot be written.
        """
        refused: list[RefusedStep] = []
        self._directory.mkdir(parents=True, exist_ok=True)
        while self._usable() and self.newest > max(newer_than, self._newest_here()):
            step = self.newest
            wanted = {step, *self._index.steps[step].needs}
            if self._index.steps[step].health != health_mark.NORMAL:
                wanted |= set(sorted(self._healthy())[-1:])
            damage = self._fetch_all(sorted(wanted & self._usable()))
            if damage is None:
                self.bring_beside()
                break
            refused.append(damage)
        return refused

    def _healthy(self) -> set[int]:
        return {step for step in self._usable() if self._index.steps[step].health == health_mark.NORMAL}

    def _newest_here(self) -> int:
        return max((step for step, _ in layout.list_iterations(self._directory)), default=-1)

    @property
    def is_behind(self) -> bool:
        """Whether the directory has a newer step than the store, because what was to bring it there has died.

        A directory whose newest step is older is not ahead in another way: it was not brought up to date, and
        publishing it would put the later steps of the store aside.
        """
        return self._newest_here() > self.newest

    def _fetch_all(self, steps: Iterable[int]) -> RefusedStep | None:
        """Fetch steps that the directory lacks. Return the first that is damaged, which the index then names.

        Raises:
            OvertakenError: another process keeps the store now.
            ForeignStoreError: another job has taken the store meanwhile, or the index cannot be read any more.
            OSError: the store does not answer, or the directory cannot be written.
        """
        for step in steps:
            final = layout.iteration_dir(self._directory, step)
            if final.exists():
                continue
            try:
                self._fetch(step, final)
            except Damaged as damage:
                return self._refuse_damaged(step, damage)
        return None

    def _refuse_damaged(self, step: int, damage: Damaged) -> RefusedStep:
        """Have the index name a step that is damaged. Raises OvertakenError, ForeignStoreError, OSError."""
        refused = RefusedStep(step, str(damage))
        self._commit(replace(self._index, refused={**self._index.refused, step: refused.why}))
        return refused

    def _fetch(self, step: int, final: Path) -> None:
        """Fetch one step, verify it, and give it its name. Raises Damaged, OSError."""
        incomplete = layout.incomplete_dir(self._directory, step)
        if incomplete.exists():
            shutil.rmtree(incomplete)
        layout.make_incomplete(self._directory, step)
        stored = self._index.steps[step]
        try:
            fetch_files(self._store, stored, incomplete)
            for name in stored.files:
                _make_durable(incomplete / name)
            atomic.fsync_dir(incomplete)
            incomplete.rename(final)
            atomic.fsync_dir(self._directory)
        except BaseException:
            shutil.rmtree(incomplete, ignore_errors=True)
            raise

    def bring_step(self, step: int) -> Brought:
        """Bring a step that the directory lacks, and the steps that it needs. Call after `claim`.

        A step that the store does not have, or has refused, is not brought.

        Raises:
            OvertakenError: another process keeps the store now.
            ForeignStoreError: another job has taken the store meanwhile, or the index cannot be read any more.
            OSError: the store does not answer, or the directory cannot be written.
        """
        self._settle()
        if step not in self._usable():
            return Brought()
        before = {number for number, _ in layout.list_iterations(self._directory)}
        damage = self._fetch_all(sorted({step, *self._index.steps[step].needs} & self._usable()))
        here = {number for number, _ in layout.list_iterations(self._directory)}
        return Brought(tuple(sorted(here - before)), () if damage is None else (damage,))

    def bring_better(self, than: int, healthy_before: int | None) -> Brought:
        """Bring the newest step that is better than what the directory has; nothing if none is. Call after `claim`.

        Args:
            than: the newest step of the directory that verifies, and is healthy if that is asked for; -1: none is.
            healthy_before: a step; only older ones that are marked healthy count. None: all count.

        Raises:
            OvertakenError: another process keeps the store now.
            ForeignStoreError: another job has taken the store meanwhile, or the index cannot be read any more.
            OSError: the store does not answer, or the directory cannot be written.
        """
        refused: tuple[RefusedStep, ...] = ()
        while True:
            usable = self._usable() if healthy_before is None else self._healthy()
            wanted = {step for step in usable if than < step and (healthy_before is None or step < healthy_before)}
            if not wanted:
                return Brought(refused=refused)
            brought = self.bring_step(max(wanted))
            refused += brought.refused
            if not brought.refused:
                return replace(brought, refused=refused)

    def bring_beside(self) -> None:
        """Write the small files beside the checkpoints, where the directory has none of its own. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for name, content in self._index.beside.items():
            path = self._directory / name
            if name in SIDE_FILES and not path.exists():
                atomic.replace_durable(path, content.encode())

    # --- from the directory to the store ----------------------------------------------------------------------

    def publish(self, keep: int, keep_every: int | None = None) -> Published:
        """Make the store have what the directory has: upload new steps, commit them, and let old ones go.

        The newest step is committed first, then the older ones. A step that the directory does not have any more is
        kept in the store as long as `keep` and `keep_every` say. A step above the newest of the directory is one that
        the job has gone back behind: `put_aside` takes it out of the usable steps. So does an empty directory with all
        steps. Call after `claim`.

        Args:
            keep: how many checkpoints to keep.
            keep_every: steps; a checkpoint at a multiple is kept. 0 or None: no such steps.

        Raises:
            OvertakenError: another process keeps the store now.
            ForeignStoreError: another job has taken the store meanwhile, or the index cannot be read any more.
            OSError: the store does not answer, or refuses. What was committed stays committed.
        """
        self._settle()
        here = dict(layout.list_iterations(self._directory))  # newest first
        published: list[int] = []
        size = 0
        for step, path in here.items():
            stored = self._upload(step, path) if self._is_to_upload(step, path) else None
            if stored is None:
                continue
            self.put_aside(above=max(here))
            self._commit_step(step, stored)
            published.append(step)
            size += stored.bytes
        self._delete_abandoned()
        self.put_aside(above=max(here, default=-1))
        deleted = self._retire(here, keep=keep, keep_every=keep_every)
        return Published(steps=tuple(published), bytes=size, deleted=tuple(deleted))

    def _commit_step(self, step: int, stored: StoredStep) -> None:
        """Commit a step. Objects of an earlier upload of the same step, which was refused, are abandoned by that.

        Args:
            step: the step.
            stored: what has been uploaded.

        Raises:
            OvertakenError: another process keeps the store now.
            ForeignStoreError: another job has taken the store meanwhile, or the index cannot be read any more.
            OSError: the store does not answer, or refuses.
        """
        before = self._index.steps.get(step)
        steps = {**self._index.steps, step: stored}
        refused = {number: why for number, why in self._index.refused.items() if number != step}
        self._commit(replace(self._index, steps=steps, refused=refused, beside=self.beside()))
        if before is not None:
            self._abandoned |= {name.rpartition("/")[0] for name in before.objects}

    def _is_to_upload(self, step: int, path: Path) -> bool:
        """Return whether a checkpoint of the directory is not the one that the store has, or the store's is damaged."""
        stored = self._index.steps.get(step)
        if stored is None or step in self._index.refused:
            return True
        try:
            content = (path / layout.METADATA).read_bytes()
        except FileNotFoundError:
            return False  # damaged or just deleted: nothing to upload
        return stored.files[layout.METADATA].digest != checksums.of_blocks(checksums.of_bytes(content))

    def _upload(self, step: int, path: Path) -> StoredStep | None:
        """Upload the files of a checkpoint; None if the checkpoint is not whole, or was deleted meanwhile."""
        folder = new_folder(step, self._index.term)
        self._abandoned.add(folder)  # until it is committed
        try:
            found = verify.examine(path)
            content = (path / layout.METADATA).read_bytes()
            entries: dict[str, tuple[int, list[str]]] = {
                name: (entry["bytes"], entry[checksums.NAME]) for name, entry in found["files"].items()
            }
            entries[layout.METADATA] = len(content), checksums.of_bytes(content)
            send_files(self._store, [path / name for name in entries], folder, self._spent)
        except (Damaged, FileNotFoundError):
            return None
        files = {
            name: StoredFile(object=f"{folder}/{name}", bytes=size, digest=checksums.of_blocks(digests))
            for name, (size, digests) in entries.items()
        }
        needs = metadata.trainings(found).ends
        return StoredStep(files=files, health=health_mark.of(found)["status"], needs=needs)

    def _delete_abandoned(self) -> None:
        """Delete what uploads have left that were not committed. Raises OSError."""
        for folder in sorted(self._abandoned):
            for name in self._index.find_leftovers(list(self._store.names(f"{folder}/"))):
                self._store.delete(name)
            self._abandoned.remove(folder)

    def beside(self) -> dict[str, str]:
        """Return the small files beside the checkpoints that a resume needs, by name. Raises OSError."""
        paths = [self._directory / name for name in SIDE_FILES]
        return {path.name: path.read_text() for path in paths if path.exists()}

    def put_aside(self, above: int) -> None:
        """Take later steps out of the usable ones, because the job goes on from step `above`, or begins anew.

        The steps leave the index's `steps` for its `aside`: no resume takes them, and retention neither counts nor
        deletes them. Their files stay in the store, for people. Call after `claim`.

        Args:
            above: steps above this one are put aside; -1 for all.

        Raises:
            OvertakenError: another process keeps the store now.
            ForeignStoreError: another job has taken the store meanwhile, or the index cannot be read any more.
            OSError: the store does not answer, or refuses.
        """
        self._settle()
        gone_back = {step: stored for step, stored in self._index.steps.items() if step > above}
        beside = self.beside()  # samples may be skipped from now on, even if no step was put aside
        if gone_back or beside != self._index.beside:
            # A step can be put aside more than once, so its name there has the term and a random part.
            aside = {f"{step}-{self._index.term}-{secrets.token_hex(4)}": stored for step, stored in gone_back.items()}
            steps = {step: stored for step, stored in self._index.steps.items() if step <= above}
            refused = {step: why for step, why in self._index.refused.items() if step <= above}
            aside = {**self._index.aside, **aside}
            self._commit(replace(self._index, steps=steps, refused=refused, aside=aside, beside=beside))

    def _retire(self, here: Iterable[int], keep: int, keep_every: int | None) -> list[int]:
        """Take steps that need not be kept out of the index, and then delete their objects.

        Args:
            here: steps of the directory, which all stay.
            keep: as `publish` takes it.
            keep_every: as `publish` takes it.

        Returns:
            The steps that left, oldest first.
        """
        candidates = [  # newest first, as `not_kept` wants them
            Candidate(step, stored.health == health_mark.NORMAL, stored.needs)
            for step, stored in sorted(self._index.steps.items(), reverse=True)
        ]
        leaving = set(retention.not_kept(candidates, keep=keep, keep_every=keep_every)) - set(here)
        if not leaving:
            return []
        gone = {name for step in leaving for name in self._index.steps[step].objects}
        steps = {step: stored for step, stored in self._index.steps.items() if step not in leaving}
        refused = {step: why for step, why in self._index.refused.items() if step not in leaving}
        self._commit(replace(self._index, steps=steps, refused=refused))
        for name in sorted(gone - self._index.objects):
            self._store.delete(name)
        return sorted(leaving)


def _make_durable(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
