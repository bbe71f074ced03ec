"""Brings the checkpoint that a job is to begin with from a store or a bucket into a folder. A process of its own.

It reads one request from stdin, as the keeper does, and answers on stdout:

    {"do": "fetch", "address", "target": path}: bring what is at the address to this path, whose folder is emptied first
        -> {"did": "fetch", "steps": [step, ...] of a store, or empty, "files", "bytes",
            "refused": [sentence on a damaged step of the store, ...]}
        or {"did": "fetch", "error": a part of a sentence}
        before that, while it takes long: {"did": "progress", "line"}
    {"do": "fetch", "address", "target", "like": what `LoadNote` has}: bring what another machine has brought from
        there, unless this path has that already -> as above; an error, too, if there is something else by now
    {"do": "forget", "target"}: remove what was brought for this path, which the job needs no more -> {"did": "forget"}

An address means the checkpoints of a job's store, or one of them (`ADDRESS/iteration_0000120`); or a folder or a file
that another program has put there, of which every object is brought under its own name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ftlaunch.checkpoints.saver import Requests
from ftlaunch.checkpoints.stores import index as indexes
from ftlaunch.checkpoints.stores.fetching import fetch_object
from ftlaunch.checkpoints.stores.load_note import LoadNote, digest_of, read_note, write_note
from ftlaunch.checkpoints.stores.store import CheckpointStore, open_store
from ftlaunch.checkpoints.stores.stored_catalog import StoreCatalog, StoreRefused
from ftlaunch.system.answer_line import write_answer
from ftlaunch_contract.checkpoint import layout, verify
from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.files import atomic
from ftlaunch_contract.progress import Advance, SlowWork

_THREADS = 4  # objects that are received at the same time
_SIDE_FILES = (layout.SEED, layout.SKIPPED)
_NICE = 10

Answer = dict[str, Any]


@dataclass
class Fetched:
    """What was brought."""

    steps: list[int] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    refused: list[str] = field(default_factory=list)


def split_step(address: str) -> tuple[str, int | None]:
    """Return the address of a store and the step that an address names; the address itself, if it names none. Pure."""
    folder, _, name = address.rpartition("/")
    step = layout.step_of(Path(name))
    return (address, None) if step is None else (folder, step)


def files_of(names: Iterable[str]) -> list[str]:
    """Return the names that are files, of the names of objects below a folder. Pure.

    Some programs make an object for each folder, of the folder's name: it is left out.

    Raises:
        StoreRefused: a name leads out of the folder.
    """
    found = sorted(names)
    folders = {str(parent) for name in found for parent in PurePosixPath(name).parents}
    for name in found:
        if any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
            raise StoreRefused(f"the object {name[:80]!r} there has a name that no file can have")
    return [name for name in found if name not in folders]


class LoadFetcher:
    """Brings what is at one address."""

    def __init__(self, address: str, target: Path, say: Callable[[str], None], like: LoadNote | None = None) -> None:
        """Ask nothing yet.

        Args:
            address: the address.
            target: where it is brought to.
            say: called with a line while it takes long.
            like: what another machine has brought from there, and this one must have, too; None: there is none.
        """
        self._address = address
        self._target = target
        self._say = say
        self._like = like

    def fetch_like(self) -> Fetched:
        """Bring what another machine has brought, unless it is here. Of several processes only one brings it.

        Raises:
            StoreRefused: the address has something else by now, or nothing; the message is a part of a sentence.
            ValueError, OSError: as `fetch`.
        """
        like = self._like
        assert like is not None
        folder = self._target.parent
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f".{folder.name}.lock").open("wb") as lock:  # nodes may share a run dir with each other
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._has(like):
                return Fetched()
            fetched = self.fetch()
            note = read_note(folder)
            if note is None or note.digest != like.digest:
                shutil.rmtree(folder, ignore_errors=True)
                raise StoreRefused("it has changed since the head of the job has brought it; start the job again")
            return fetched

    def _has(self, like: LoadNote) -> bool:
        """Return whether the folder has, whole, what another machine has brought. Raises OSError."""
        folder = self._target.parent
        if read_note(folder) != like:
            return False
        try:
            for step in like.steps:
                verify.verify(layout.iteration_dir(self._folder_of_steps(), step))
            return digest_of(folder) == like.digest
        except (Damaged, FileNotFoundError):
            return False

    def _folder_of_steps(self) -> Path:
        """Return the folder in which the steps of a store lie."""
        return self._target if split_step(self._address)[1] is None else self._target.parent

    def fetch(self) -> Fetched:
        """Empty the target's folder, and bring what is at the address.

        Raises:
            StoreRefused: there is nothing that can be brought; the message is a part of a sentence.
            ValueError: the address is not one of this store; the message is a part of a sentence.
            OSError: the store does not answer, or the folder cannot be written.
        """
        shutil.rmtree(self._target.parent, ignore_errors=True)
        self._target.parent.mkdir(parents=True)
        address, step = split_step(self._address)
        store = open_store(address)
        if store.read(indexes.NAME) is not None:
            fetched = self._fetch_steps(StoreCatalog(store), step)
        else:
            fetched = self._fetch_objects(open_store(self._address))
        beside = {}
        if fetched.steps:
            for name in _SIDE_FILES:
                with contextlib.suppress(FileNotFoundError):
                    beside[name] = (self._folder_of_steps() / name).read_text(encoding="utf-8")
        folder = self._target.parent
        write_note(
            folder,
            LoadNote(address=self._address, steps=tuple(fetched.steps), beside=beside, digest=digest_of(folder)),
        )
        return fetched

    # --- of a job's store -------------------------------------------------------------------------------------

    def _fetch_steps(self, catalog: StoreCatalog, step: int | None) -> Fetched:
        """Bring the step that was asked for, or the newest that is whole. Raises StoreRefused, OSError."""
        fetched = Fetched()
        folder = self._folder_of_steps()
        folder.mkdir(exist_ok=True)
        beside = catalog.index.beside
        if self._like is not None and self._like.steps:
            step = self._like.steps[-1]
            beside = dict(self._like.beside)
        usable = sorted(set(catalog.index.steps) - set(catalog.index.refused), reverse=True)
        for number in usable if step is None else [step]:
            try:
                self._fetch_step(catalog, number, folder, fetched)
            except Damaged as damage:
                if step is not None:
                    raise StoreRefused(f"step {step} there is damaged: {damage}") from None
                fetched.refused.append(f"step {number} of {catalog.where} is damaged: {damage}")
                continue
            for name, content in beside.items():
                if name in _SIDE_FILES:
                    atomic.replace_durable(folder / name, content.encode())
            return fetched
        raise StoreRefused("; ".join(["no checkpoint there is usable", *fetched.refused]))

    def _fetch_step(self, catalog: StoreCatalog, step: int, folder: Path, fetched: Fetched) -> None:
        """Bring a step, and the steps that a resume from it reads besides. Raises StoreRefused, Damaged, OSError."""
        stored = catalog.index.steps.get(step)
        needs = () if stored is None else stored.needs
        for number in (*needs, step):
            if not layout.iteration_dir(folder, number).exists():
                try:
                    catalog.bring_step(number, folder, self._watched)
                except BaseException:
                    shutil.rmtree(layout.iteration_dir(folder, number), ignore_errors=True)
                    raise
                fetched.steps.append(number)
                fetched.files += len(catalog.index.steps[number].files)
                fetched.bytes += catalog.index.steps[number].bytes

    @contextmanager
    def _watched(self, doing: str, total: int | None) -> Iterator[Advance]:
        slow = SlowWork(f"{doing} from {self._address}", total, self._say)
        yield slow.advance
        slow.finish()

    # --- of other programs ------------------------------------------------------------------------------------

    def _fetch_objects(self, store: CheckpointStore) -> Fetched:
        """Bring every object below the address; or the object of that name. Raises StoreRefused, OSError."""
        names = files_of(store.names(""))
        with self._watched("bringing what is there", None) as advance:
            if names:
                with ThreadPoolExecutor(_THREADS) as pool:
                    list(pool.map(lambda name: _fetch(store, name, self._target / name, advance), names))
            else:
                self._fetch_one(advance)
        size = sum(path.stat().st_size for path in self._target.parent.rglob("*") if path.is_file())
        return Fetched(files=len(names) or 1, bytes=size)

    def _fetch_one(self, advance: Advance) -> None:
        """Bring the object that the whole address names. Raises StoreRefused, OSError."""
        folder, _, name = self._address.rpartition("/")
        nothing = StoreRefused("there is no such object, and none below it")
        if folder.endswith(":/"):  # the address is a whole bucket
            raise nothing
        try:
            _fetch(open_store(folder), name, self._target, advance)
        except FileNotFoundError:
            raise nothing from None


def _fetch(store: CheckpointStore, name: str, path: Path, advance: Advance) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fetch_object(store, name, path, advance)


def _carry_out(request: Answer) -> Answer:
    """Return the answer to a request."""

    def say(line: str) -> None:
        write_answer({"did": "progress", "line": line})

    about = {"did": request["do"]}
    if request["do"] == "forget":
        shutil.rmtree(Path(request["target"]).parent, ignore_errors=True)
        return about
    try:
        like = LoadNote.parse(request["like"]) if "like" in request else None
        fetcher = LoadFetcher(request["address"], Path(request["target"]), say, like)
        return {**about, **asdict(fetcher.fetch() if like is None else fetcher.fetch_like())}
    except (StoreRefused, ValueError) as error:
        return {**about, "error": str(error)}
    except OSError as error:
        return {**about, "error": error.strerror or str(error)}


def main() -> int:
    """Serve until stdin ends."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the supervisor, which gets the same signal, ends this process
    os.nice(_NICE)
    for request in Requests(sys.stdin.fileno()):
        if request["do"] == "leave" or not write_answer(_carry_out(request)):
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
