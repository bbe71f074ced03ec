"""The memory directory of a job in /dev/shm: its path, the job that owns it, its removal.

A job id is made of a working directory and a command, so two jobs can have the same id: the same command with another
run dir, or the same paths in two containers that share /dev/shm. The directory therefore holds a note of its job's
places, and no job uses the memory of another (memory_owner.py).
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.protocol import memory_root

_PLACES = "places.json"
COPIES = "peers"
"""name of the folder that holds copies of other nodes' snapshots"""
COPY_NOTE = "copy.json"
"""name of the file that marks a copy of another node's snapshot as complete"""
LINEAGE = "lineage"
"""name of the file in an agent's memory directory that says which attempt its steps come from"""
APART = "@"
"""separator of job id and digest in the name of a directory apart; no job id contains it"""
_LONGEST = 47  # characters of the job id in the name of a directory apart, because a socket's path must be short


@dataclass(frozen=True)
class Places:
    """The files that tell a job from another job with the same id. Paths are resolved."""

    run_dir: str
    checkpoint_dir: str
    device: int
    """number of the device that holds the run dir"""
    inode: int
    """inode of the run dir; in two containers, equal paths may mean different directories"""

    @property
    def digest(self) -> str:
        """A hash of all fields, as 16 hexadecimal digits."""
        text = "\0".join(map(str, asdict(self).values()))
        return hashlib.sha256(os.fsencode(text)).hexdigest()[:16]


def places_of(run_dir: Path, checkpoint_dir: Path) -> Places:
    """Return the places of a job whose run dir exists. Raises OSError."""
    found = run_dir.stat()
    return Places(
        run_dir=str(run_dir.resolve()),
        checkpoint_dir=str(checkpoint_dir.resolve()),
        device=found.st_dev,
        inode=found.st_ino,
    )


def memory_dir(job_id: str) -> Path:
    """Return the directory of a job's pages and snapshots, which may be taken by another job with the same id."""
    return memory_root(os.getuid()) / job_id


def memory_dir_apart(job_id: str, places: Places) -> Path:
    """Return the directory that a job uses if another job with the same id has taken `memory_dir`."""
    return memory_root(os.getuid()) / f"{job_id[:_LONGEST]}{APART}{places.digest}"


def memory_dirs(job_id: str) -> list[Path]:
    """Return the existing memory directories of all jobs with this id."""
    apart = memory_root(os.getuid()).glob(f"{glob.escape(job_id[:_LONGEST])}{APART}*")
    return [path for path in (memory_dir(job_id), *sorted(apart)) if path.is_dir()]


def write_places(directory: Path, places: Places) -> None:
    """Write into a memory directory which job owns it. Raises OSError.

    The note is renamed into place, so that a reader finds a whole note or none.
    """
    temporary = directory / f"{_PLACES}.tmp"
    temporary.touch(mode=0o600)
    temporary.write_text(json.dumps(asdict(places)))
    temporary.rename(directory / _PLACES)


def read_places(directory: Path) -> Places | None:
    """Return the places of the job that owns a memory directory; None if they are unknown."""
    try:
        note = json.loads((directory / _PLACES).read_text())
        return Places(
            run_dir=str(note["run_dir"]),
            checkpoint_dir=str(note["checkpoint_dir"]),
            device=int(note["device"]),
            inode=int(note["inode"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_lineage(directory: Path) -> str:
    """Return which attempt the steps in an agent's memory directory come from; empty if that is unknown."""
    try:
        return (directory / LINEAGE).read_text()[:100]
    except OSError:
        return ""


def remove_memory(directory: Path) -> None:
    """Delete a job's memory directory, and the user's directory if no other job is left in it. Raises OSError."""
    forget_steps(directory)
    layout.remove_slots(directory)
    shutil.rmtree(directory)
    with contextlib.suppress(OSError):  # other jobs have their directories there
        directory.parent.rmdir()


def page_files(directory: Path) -> list[Path]:
    """Return the paths of the pages in a memory directory, sorted; none if there is no such directory.

    Raises:
        OSError: the directory cannot be listed. Path.glob() would find nothing in a directory that may not be read,
            and memory that seems to be empty is deleted.
    """
    try:
        return sorted(path for path in directory.iterdir() if path.name.startswith("page_"))
    except FileNotFoundError:
        return []


def count_pages(directory: Path) -> int:
    """Return the number of ranks that have a page in a memory directory. Raises OSError."""
    return len(page_files(directory))


def first_page(directory: Path) -> int:
    """Return the lowest rank that has a page in a memory directory; 0 if there is no page. Raises OSError."""
    numbers = [path.name.removeprefix("page_") for path in page_files(directory)]
    return min((int(number) for number in numbers if number.isdecimal()), default=0)


def forget_steps(directory: Path) -> None:
    """Delete the files that say which steps are whole: pages, and the notes of other nodes' copies. Raises OSError.

    Call this before the snapshots are deleted. If a removal breaks off between the two (a call that fails, SIGKILL),
    pages must not promise steps whose files are gone: the next run would resume from them, and be refused.
    """
    for path in [*page_files(directory), *directory.glob(f"{COPIES}/*/*/{COPY_NOTE}")]:
        path.unlink()


def forget_snapshots(directory: Path) -> None:
    """Delete pages, snapshot slots, and fingerprints of steps. Raises OSError."""
    forget_steps(directory)
    layout.remove_slots(directory)
    for path in directory.glob("fingerprints_*"):
        path.unlink()
