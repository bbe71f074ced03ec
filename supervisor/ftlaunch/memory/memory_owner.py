"""Takes a memory directory for a job: the job's own, or an unused one; never one of another job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ftlaunch.memory.directory import (
    Places,
    count_pages,
    memory_dir,
    memory_dir_apart,
    read_places,
    remove_memory,
    write_places,
)
from ftlaunch_contract.files.dirlock import DirLock, Locked
from ftlaunch_contract.files.private_dir import make_private


@dataclass(frozen=True)
class MemoryTaken:
    """A memory directory that is locked."""

    directory: Path
    lock: DirLock
    made: bool
    """the directory is new"""

    def give_back(self) -> None:
        """Release the lock; a directory that is new is deleted."""
        if self.made:
            remove_memory(self.directory)
        self.lock.release()


def take(job_id: str, places: Places, wait: Callable[[int], None], say: Callable[[str], None]) -> MemoryTaken:
    """The memory of the job of these places; a new directory where it has none.

    wait: is called with a pid before waiting for the saver of this job's dead supervisor. say: told what is found and
    belongs to another job. Raises dirlock.Locked, private_dir.NotPrivate or OSError.
    """
    common, apart = memory_dir(job_id), memory_dir_apart(job_id, places)
    if not apart.is_dir():
        taken = _take(common, places, wait)
        if taken is not None:
            return taken
        say(f"{common} is {_owner(common)}: it is left alone; the memory of this job is {apart}")
    taken = _take(apart, places, wait)
    assert taken is not None, "two jobs with one digest"
    return taken


def remove_unowned(job_id: str, places: Places) -> None:
    """Delete a memory directory of the job of these places that no living process has: a killed head's.

    Raises OSError.
    """
    for directory in (memory_dir(job_id), memory_dir_apart(job_id, places)):
        with suppress(Locked, FileNotFoundError):
            lock = DirLock(directory, patience=0.0)
            if read_places(directory) == places:
                remove_memory(directory)
            lock.release()


def _owner(directory: Path) -> str:
    """Whose memory it is, in words."""
    places = read_places(directory)
    if places is None:
        return "the memory of a job that is not known"
    return f"the memory of another job (run dir {places.run_dir}, checkpoints in {places.checkpoint_dir})"


def _take(directory: Path, places: Places, wait: Callable[[int], None]) -> MemoryTaken | None:
    """Lock a directory, made where it is missing; None where it belongs to another job."""
    while True:
        made = not directory.exists()
        make_private(directory)
        with suppress(FileNotFoundError):  # its owner has just ended and deleted it: make it again
            lock = _lock(directory, places, wait)
            return None if lock is None else MemoryTaken(directory, lock, made)


def _lock(directory: Path, places: Places, wait: Callable[[int], None]) -> DirLock | None:
    if read_places(directory) not in (None, places):
        return None
    try:
        lock = DirLock(directory, patience=0.0)
    except Locked:
        if read_places(directory) != places:
            return None
        lock = DirLock(directory, wait)
    owner = read_places(directory)
    if owner == places or (owner is None and not count_pages(directory)):
        write_places(directory, places)
        return lock
    lock.release()
    return None
