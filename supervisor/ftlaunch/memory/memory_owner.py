"""Acquires the memory directory of a job: the job's own, or a new one; never the directory of another job.

A supervisor or agent acquires its memory once, before its event loop starts. The calls may wait for a dying saver.
"""

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
class OwnedMemory:
    """A memory directory that this process has locked."""

    directory: Path
    lock: DirLock
    made: bool
    """whether the directory is new"""

    def give_back(self) -> None:
        """Release the lock, and delete the directory if it is new. Raises OSError."""
        try:
            if self.made:
                remove_memory(self.directory)
        finally:
            self.lock.release()


def acquire(job_id: str, places: Places, wait: Callable[[int], None], say: Callable[[str], None]) -> OwnedMemory:
    """Lock the memory directory of a job, and create the directory if the job has none.

    Args:
        job_id: the job's id, which another job may have as well.
        places: what tells the job from others with the same id.
        wait: called with a pid before waiting for the saver of this job's dead supervisor.
        say: called with a sentence if memory of another job is found.

    Raises:
        dirlock.Locked: a living process uses the job's memory.
        private_dir.NotPrivate: other users could change the directory.
        OSError: the directory cannot be created or locked.
    """
    common = memory_dir(job_id)
    apart = memory_dir_apart(job_id, places)
    if not apart.is_dir():
        owned = _acquire(common, places, wait)
        if owned is not None:
            return owned
        say(f"{common} is {_describe_owner(common)}: it is left alone; the memory of this job is {apart}")
    owned = _acquire(apart, places, wait)
    assert owned is not None, "two jobs with one digest"
    return owned


def remove_unowned(job_id: str, places: Places) -> None:
    """Delete the memory directories of a job that no living process has locked, as a killed head leaves them.

    Args:
        job_id: the job's id.
        places: what tells the job from others with the same id, whose directories stay.

    Raises:
        OSError: a directory cannot be deleted.
    """
    for directory in (memory_dir(job_id), memory_dir_apart(job_id, places)):
        with suppress(Locked, FileNotFoundError):
            lock = DirLock(directory, patience=0.0)
            try:
                if read_places(directory) == places:
                    remove_memory(directory)
            finally:
                lock.release()


def _describe_owner(directory: Path) -> str:
    """Say in words whose memory directory this is."""
    places = read_places(directory)
    if places is None:
        return "the memory of a job that is not known"
    return f"the memory of another job (run dir {places.run_dir}, checkpoints in {places.checkpoint_dir})"


def _acquire(directory: Path, places: Places, wait: Callable[[int], None]) -> OwnedMemory | None:
    """Lock a directory, which is created if it is missing. Return None if another job owns the directory."""
    while True:
        made = not directory.exists()
        make_private(directory)
        with suppress(FileNotFoundError):  # the owner has just ended and deleted the directory: create it again
            lock = _lock(directory, places, wait)
            return None if lock is None else OwnedMemory(directory, lock, made)


def _lock(directory: Path, places: Places, wait: Callable[[int], None]) -> DirLock | None:
    """Lock an existing directory and note the owner in it. Return None if another job owns the directory.

    The owner is read before locking, as a job need not wait for a lock of another job, and again under the lock, as the
    owner may have changed meanwhile.
    """
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
