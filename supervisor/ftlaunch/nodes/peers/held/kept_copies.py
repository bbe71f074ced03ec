"""The copies that this node keeps for other nodes, two for each rank: the older one stays until the newer one is whole.

A copy lies in peers/RANK/0 or peers/RANK/1. It looks like a slot, but its tensor files have holes where this node's own
slots hold the chunks. A copy counts only with its `copy.json`, which is written last and removed first.
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

_PLACES = 2  # for each rank


Reserved = tuple[Mapping[str, str], Mapping[str, Runs]]
"""group -> digest of the header in a file; group -> the chunks whose memory is reserved"""


class CopyRefusedError(Exception):
    """A copy cannot be taken now. The message is a clause that follows a colon."""


@dataclass(frozen=True)
class KeptCopy:
    """A whole copy of the chunks of a rank's snapshot that this node does not hold itself."""

    rank: int
    place: int
    """0 or 1: which of the two copies of the rank"""
    lineage: str
    step: int
    world: int
    """ranks of the job"""
    headers: Mapping[str, str]
    """group -> digest of the header"""
    common: str
    """digest of common.json"""
    present: Mapping[str, Runs]
    """group -> the chunks that the copy has"""
    own: Mapping[str, Runs]
    """group -> the chunks that the rank saves as its own, so that no other rank's are the same"""
    samples: Mapping[str, str]
    """group -> the samples of all chunks (DescribedSlot.samples), joined, in hexadecimal digits"""


class KeptCopies:
    """All copies that this node keeps. For any thread."""

    def __init__(self, memory_dir: Path) -> None:
        """Find the copies that an earlier copier of this node has left. Raises OSError."""
        self._folder = memory_dir / COPIES
        self._lock = threading.Lock()
        self._writing: set[int] = set()  # ranks whose copies are being received
        self._laid_out: dict[tuple[int, int], Reserved] = {}  # by rank and place
        self._closed = True  # no copy is taken before the first attempt
        self._copies = {(copy.rank, copy.place): copy for copy in _found(self._folder)}

    def forget(self) -> None:
        """Delete all copies.

        Raises:
            OSError: a copy cannot be deleted. No copy counts any more all the same.
        """
        with self._lock:
            self._copies = {}
            self._laid_out = {}
            self._delete_others()

    def begin(self, lineage: str, resumed: tuple[str, int] | None, own: Collection[int]) -> None:
        """Begin an attempt: assign it the copies of the step that it resumes, and delete all others.

        Args:
            lineage: the lineage of the attempt.
            resumed: the lineage and the step that the attempt resumes, or None.
            own: this node's ranks. Copies for them were kept for another node, whose place this node has got. Their
                slots are restored from these copies, which are deleted when the next attempt begins.

        Raises:
            OSError: a copy cannot be assigned or deleted.
        """
        with self._lock:
            kept = {}
            for key, copy in self._copies.items():
                if (copy.lineage, copy.step) == resumed or (copy.lineage == lineage and copy.rank not in own):
                    kept[key] = replace(copy, lineage=lineage)
                    self._write_note(kept[key])
            self._copies = kept
            self._closed = False
            self._laid_out = {key: (copy.headers, copy.present) for key, copy in kept.items()}
            self._delete_others()

    def _delete_others(self) -> None:
        """Delete all directories that are no copy. Raises the last OSError, after a try at each directory."""
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
        """Take no copies until `begin`.

        Returns:
            The steps of the kept copies of a lineage, by rank.
        """
        with self._lock:
            self._closed = True
            found: dict[int, list[int]] = {}
            for copy in self._copies.values():
                if copy.lineage == lineage:
                    found.setdefault(copy.rank, []).append(copy.step)
            return {rank: sorted(set(steps)) for rank, steps in sorted(found.items())}

    def find(self, rank: int, lineage: str, step: int) -> KeptCopy | None:
        """Return the copy of a rank's snapshot of a step, or None."""
        for place in range(_PLACES):
            copy = self._copies.get((rank, place))
            if copy is not None and (copy.lineage, copy.step) == (lineage, step):
                return copy
        return None

    def holds(self, copy: KeptCopy) -> bool:
        """Return whether a copy is still kept, unchanged."""
        return self._copies.get((copy.rank, copy.place)) is copy

    def directory(self, rank: int, place: int) -> Path:
        """Return the directory of a copy."""
        return self._folder / str(rank) / str(place)

    # --- receiving -----------------------------------------------------------------------------------------

    def claim(self, rank: int) -> tuple[int, Reserved | None]:
        """Reserve a place for a new copy of a rank, and drop the copy that lies there. `release` must follow.

        Returns:
            The place, and what is laid out there already, or None.

        Raises:
            CopyRefusedError: no copy can be taken now.
            OSError: the old copy cannot be dropped.
        """
        with self._lock:
            if self._closed:
                raise CopyRefusedError("it takes no copies now")
            if rank in self._writing:
                raise CopyRefusedError(f"another copy of rank {rank} is on its way to it")
            held = {place: copy.step for place in range(_PLACES) if (copy := self._copies.get((rank, place)))}
            place = min(range(_PLACES), key=lambda number: held.get(number, -1))
            self._copies.pop((rank, place), None)
            (self.directory(rank, place) / COPY_NOTE).unlink(
                missing_ok=True
            )  # also a note that could not be deleted before
            self._writing.add(rank)
            return place, self._laid_out.pop((rank, place), None)

    def release(self, rank: int) -> None:
        """End what `claim` has begun: no copy of a rank is being received any more."""
        with self._lock:
            self._writing.discard(rank)

    def commit(self, copies: Collection[KeptCopy], may_commit: Callable[[], bool]) -> None:
        """Keep received copies, which are whole now.

        Args:
            copies: the copies.
            may_commit: returns whether they may still be taken.

        Raises:
            CopyRefusedError: copies cannot be taken now.
            OSError: a note cannot be written.
        """
        with self._lock:
            if self._closed or not may_commit():
                raise CopyRefusedError("it takes no copies now")
            for copy in copies:
                self._write_note(copy)
            self._copies.update({(copy.rank, copy.place): copy for copy in copies})
            self._laid_out.update({(copy.rank, copy.place): (copy.headers, copy.present) for copy in copies})

    def _write_note(self, copy: KeptCopy) -> None:
        text = json.dumps(asdict(copy)).encode()
        atomic.replace_durable(self.directory(copy.rank, copy.place) / COPY_NOTE, text)


# --- what an earlier copier has left -----------------------------------------------------------------------


def _found(folder: Path) -> list[KeptCopy]:
    """Return the copies whose note is whole, and delete everything else in the folder."""
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
    """Return the copy that the note in a directory describes, or None if there is no whole note."""
    try:
        note = untrusted_json.mapping(untrusted_json.parse((directory / COPY_NOTE).read_bytes()), "it")
        return KeptCopy(
            rank=checked.rank_of(note.get("rank")),
            place=untrusted_json.whole(note.get("place"), "`place`"),
            lineage=checked.lineage_of(note),
            step=untrusted_json.whole(note.get("step"), "`step`"),
            world=untrusted_json.whole(note.get("world"), "`world`", 1),
            headers={group: checked.digest_of(value, group) for group, value in _groups(note, "headers").items()},
            common=checked.digest_of(note.get("common"), "`common`"),
            present={group: _runs(value) for group, value in _groups(note, "present").items()},
            own={group: _runs(value) for group, value in _groups(note, "own").items()},
            samples={group: _hexadecimal(value) for group, value in _groups(note, "samples").items()},
        )
    except (OSError, ValueError):
        return None


def _groups(note: Mapping[str, Any], name: str) -> dict[str, Any]:
    return untrusted_json.mapping(note.get(name), name)


def _hexadecimal(value: object) -> str:
    return bytes.fromhex(untrusted_json.text(value, "a sample")).hex()


def _runs(value: object) -> Runs:
    return tuple((first, end) for first, end in map(tuple, value)) if isinstance(value, list) else ()
