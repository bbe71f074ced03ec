"""The directory of a job in /dev/shm: its path, the job it belongs to, its removal.

A job id is made of a working directory and a command, so two jobs can have the same one: the same command with another
run dir, or the same paths in two containers that share /dev/shm. The directory therefore notes the places of its job,
and a job takes up the memory of no other (memory_owner.py).
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
COPIES, COPY_NOTE = "peers", "copy.json"
"""the folder of copies of other nodes' snapshots, and the file in each that says that it is whole"""
LINEAGE = "lineage"
"""the file in an agent's memory directory that says of which attempt its steps are"""
APART = "@"
"""stands between job id and digest in the name of a directory apart; no job id has it"""
_LONGEST = 47  # characters of the job id in the name of a directory apart: a socket's path is short


@dataclass(frozen=True)
class Places:
    """What tells one job from another of the same id. Paths are resolved."""

    run_dir: str
    checkpoint_dir: str
    device: int
    """of the run dir's file system"""
    inode: int
    """of the run dir: two containers may have other directories at equal paths"""

    @property
    def digest(self) -> str:
        """16 hexadecimal digits."""
        text = "\0".join(map(str, asdict(self).values()))
        return hashlib.sha256(os.fsencode(text)).hexdigest()[:16]


def places_of(run_dir: Path, checkpoint_dir: Path) -> Places:
    """The places of a job whose run dir is there. Raises OSError."""
    found = run_dir.stat()
    return Places(str(run_dir.resolve()), str(checkpoint_dir.resolve()), found.st_dev, found.st_ino)


def memory_dir(job_id: str) -> Path:
    """Where a job keeps its pages and snapshots, unless another job of the same id keeps its own there."""
    return memory_root(os.getuid()) / job_id


def memory_dir_apart(job_id: str, places: Places) -> Path:
    """Where a job keeps them when `memory_dir` is another's."""
    return memory_root(os.getuid()) / f"{job_id[:_LONGEST]}{APART}{places.digest}"


def memory_dirs(job_id: str) -> list[Path]:
    """The memory directories of all jobs of an id that are there."""
    apart = memory_root(os.getuid()).glob(f"{glob.escape(job_id[:_LONGEST])}{APART}*")
    return [path for path in (memory_dir(job_id), *sorted(apart)) if path.is_dir()]


def write_places(directory: Path, places: Places) -> None:
    """Note in a memory directory which job it belongs to; a reader finds the note whole. Raises OSError."""
    temporary = directory / f"{_PLACES}.tmp"
    temporary.touch(mode=0o600)
    temporary.write_text(json.dumps(asdict(places)))
    temporary.rename(directory / _PLACES)


def read_places(directory: Path) -> Places | None:
    """The places of the job a memory directory belongs to; None where they are not known."""
    try:
        told = json.loads((directory / _PLACES).read_text())
        return Places(str(told["run_dir"]), str(told["checkpoint_dir"]), int(told["device"]), int(told["inode"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_lineage(directory: Path) -> str:
    """Return of which attempt the steps in an agent's memory directory are; empty where that is not known."""
    try:
        return (directory / LINEAGE).read_text()[:100]
    except OSError:
        return ""


def remove_memory(directory: Path) -> None:
    """Delete a job's memory directory, and the user's when it was the last. Raises OSError."""
    forget_steps(directory)
    layout.remove_slots(directory)
    shutil.rmtree(directory)
    with contextlib.suppress(OSError):  # other jobs are in it
        directory.parent.rmdir()


def page_files(directory: Path) -> list[Path]:
    """List the pages in a memory directory, by rank; none where there is no such directory.

    Raises OSError where they cannot be listed: Path.glob() finds nothing in a directory that may not be read, and
    memory that is taken for empty is deleted.
    """
    try:
        return sorted(path for path in directory.iterdir() if path.name.startswith("page_"))
    except FileNotFoundError:
        return []


def count_pages(directory: Path) -> int:
    """How many ranks the pages in a memory directory are of. Raises OSError."""
    return len(page_files(directory))


def first_page(directory: Path) -> int:
    """The first rank that the pages in a memory directory are of; 0 where there is none. Raises OSError."""
    numbers = [path.name.removeprefix("page_") for path in page_files(directory)]
    return min((int(number) for number in numbers if number.isdecimal()), default=0)


def forget_steps(directory: Path) -> None:
    """Delete what says which steps are whole: pages, and the notes of copies for other nodes. Raises OSError.

    It comes before what it speaks of: a removal that is broken off (a call that fails, SIGKILL) would leave pages of
    steps whose files are gone, and the next run would take those up, and be refused.
    """
    for path in [*page_files(directory), *directory.glob(f"{COPIES}/*/*/{COPY_NOTE}")]:
        path.unlink()


def forget_snapshots(directory: Path) -> None:
    """Delete pages, snapshot slots, and fingerprints of steps. Raises OSError."""
    forget_steps(directory)
    layout.remove_slots(directory)
    for path in directory.glob("fingerprints_*"):
        path.unlink()
