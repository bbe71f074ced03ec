"""Copies of other nodes' snapshots, two for each rank: the older one stays whole until the newer one is.

A copy lies in peers/RANK/0 or 1 and looks like a slot, but its tensor files have holes where this node's own slots
hold the chunks. It counts by its `copy.json`, which is written last and removed first.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ftlaunch.memory.directory import COPIES, COPY_NOTE
from ftlaunch.nodes.peers.plan import checked
from ftlaunch.nodes.peers.plan.chunk_places import Runs
from ftlaunch_contract.files import atomic, untrusted_json

_PLACES = 2


Reserved = tuple[Mapping[str, str], Mapping[str, Runs]]
"""group -> digest of the header in a file; group -> the chunks whose memory is reserved"""


class CopyRefusedError(Exception):
    """A copy cannot be taken now; the message is a clause that follows a colon."""


@dataclass(frozen=True)
class KeptCopy:
    """A whole copy of what no other node holds of a rank's snapshot."""

    rank: int
    place: int
    """0 or 1"""
    lineage: str
    step: int
    world: int
    headers: Mapping[str, str]
    """group -> digest of the header"""
    common: str
    """digest of common.json"""
    present: Mapping[str, Runs]
    """group -> the chunks that are here"""
    own: Mapping[str, Runs]
    """group -> those of them that the rank saves as its own: no other node's are the same"""
    samples: Mapping[str, str]
    """group -> the samples of all chunks, see DescribedSlot; in hexadecimal digits, one behind another"""


class KeptCopies:
    """All copies in this node's memory. Several threads use it."""

    def __init__(self, memory_dir: Path) -> None:
        """Find what an earlier copier of this node has left."""
        self._folder = memory_dir / COPIES
        self._lock = threading.Lock()
        self._writing: set[int] = set()
        self._laid_out: dict[tuple[int, int], Reserved] = {}
        self._closed = True  # no copy is taken before the first attempt
        self._copies = {(copy.rank, copy.place): copy for copy in _found(self._folder)}

    def forget(self) -> None:
        """Delete all copies. Raises OSError where one cannot be deleted: no copy counts any more all the same."""
        with self._lock:
            self._copies = {}
            self._laid_out = {}
            self._delete_others()

    def begin(self, lineage: str, resumed: tuple[str, int] | None, own: Collection[int]) -> None:
        """A new attempt: copies of the step that it resumes are its own from now on, all others are deleted.

        own: this node's ranks. What is kept for them was kept for another node, whose place this one has got: their
        slots are made of it, and it is deleted when the next attempt begins.
        """
        with self._lock:
            kept = {}
            for key, copy in self._copies.items():
                if (copy.lineage, copy.step) == resumed or (copy.lineage == lineage and copy.rank not in own):
                    kept[key] = replace(copy, lineage=lineage)
                    self._note(kept[key])
            self._copies = kept
            self._closed = False
            self._laid_out = {key: (copy.headers, copy.present) for key, copy in kept.items()}
            self._delete_others()

    def _delete_others(self) -> None:
        """Delete what is no copy; a directory that cannot be deleted keeps no other one."""
        problem = None
        for directory in self._folder.glob("*/*"):
            if (int(directory.parent.name), int(directory.name)) not in self._copies:
                try:
                    _remove(directory)
                except OSError as error:
                    problem = error
        if problem is not None:
            raise problem

    def freeze(self, lineage: str) -> dict[int, list[int]]:
        """Take no copies until `begin`: rank -> the steps of this lineage that are held whole."""
        with self._lock:
            self._closed = True
            found: dict[int, list[int]] = {}
            for copy in [one for one in self._copies.values() if one.lineage == lineage]:
                found.setdefault(copy.rank, []).append(copy.step)
            return {rank: sorted(set(steps)) for rank, steps in sorted(found.items())}

    def find(self, rank: int, lineage: str, step: int) -> KeptCopy | None:
        """The copy of a rank's snapshot of that step."""
        for place in range(_PLACES):
            copy = self._copies.get((rank, place))
            if copy is not None and (copy.lineage, copy.step) == (lineage, step):
                return copy
        return None

    def holds(self, copy: KeptCopy) -> bool:
        """Whether a copy is still there, untouched."""
        return self._copies.get((copy.rank, copy.place)) is copy

    def directory(self, rank: int, place: int) -> Path:
        """Where a copy lies."""
        return self._folder / str(rank) / str(place)

    # --- receiving -----------------------------------------------------------------------------------------

    def claim(self, rank: int) -> tuple[int, Reserved | None]:
        """A place for a new copy of this rank, which holds none from now on, and what is laid out there already.

        `release` it. Raises CopyRefusedError, OSError.
        """
        with self._lock:
            if self._closed:
                raise CopyRefusedError("it takes no copies now")
            if rank in self._writing:
                raise CopyRefusedError(f"another copy of rank {rank} is on its way to it")
            held = {place: copy.step for place in range(_PLACES) if (copy := self._copies.get((rank, place)))}
            place = min(range(_PLACES), key=lambda number: held.get(number, -1))
            self._copies.pop((rank, place), None)
            (self.directory(rank, place) / COPY_NOTE).unlink(missing_ok=True)  # also of one that could not be deleted
            self._writing.add(rank)
            return place, self._laid_out.pop((rank, place), None)

    def release(self, rank: int) -> None:
        """Nothing is written for this rank any more."""
        with self._lock:
            self._writing.discard(rank)

    def commit(self, copies: Collection[KeptCopy], still: Callable[[], bool]) -> None:
        """These copies are whole. still: whether they may still be taken. Raises CopyRefusedError, OSError."""
        with self._lock:
            if self._closed or not still():
                raise CopyRefusedError("it takes no copies now")
            for copy in copies:
                self._note(copy)
            self._copies.update({(copy.rank, copy.place): copy for copy in copies})
            self._laid_out.update({(copy.rank, copy.place): (copy.headers, copy.present) for copy in copies})

    def _note(self, copy: KeptCopy) -> None:
        text = json.dumps(asdict(copy)).encode()
        atomic.replace_durable(self.directory(copy.rank, copy.place) / COPY_NOTE, text)


# --- what an earlier copier has left -----------------------------------------------------------------------


def _found(folder: Path) -> list[KeptCopy]:
    """The copies whose note is whole; anything else in the folder is deleted."""
    copies = []
    for directory in folder.glob("*"):
        for place in directory.glob("*"):
            copy = _read(place)
            if copy is not None and place == folder / str(copy.rank) / str(copy.place):
                copies.append(copy)
            else:
                _remove(place)
    return copies


def _remove(directory: Path) -> None:
    (directory / COPY_NOTE).unlink(missing_ok=True)
    shutil.rmtree(directory)


def _read(directory: Path) -> KeptCopy | None:
    try:
        note = untrusted_json.mapping(untrusted_json.parse((directory / COPY_NOTE).read_bytes()), "it")
        return KeptCopy(
            checked.rank_of(note.get("rank")),
            untrusted_json.whole(note.get("place"), "`place`"),
            checked.lineage_of(note),
            untrusted_json.whole(note.get("step"), "`step`"),
            untrusted_json.whole(note.get("world"), "`world`", 1),
            {group: checked.digest_of(told, group) for group, told in _groups(note, "headers").items()},
            checked.digest_of(note.get("common"), "`common`"),
            {group: _runs(told) for group, told in _groups(note, "present").items()},
            {group: _runs(told) for group, told in _groups(note, "own").items()},
            {group: _hexadecimal(told) for group, told in _groups(note, "samples").items()},
        )
    except (OSError, ValueError):
        return None


def _groups(note: Mapping[str, Any], name: str) -> dict[str, Any]:
    return untrusted_json.mapping(note.get(name), name)


def _hexadecimal(told: object) -> str:
    return bytes.fromhex(untrusted_json.text(told, "a sample")).hex()


def _runs(told: object) -> Runs:
    return tuple((first, end) for first, end in map(tuple, told)) if isinstance(told, list) else ()
