"""Finds what killed jobs have left in /dev/shm, decides whether it may go, and removes it.

`ftctl clean` calls these functions in its own process. A directory is removed only while its lock is held, so that no
living supervisor, saver or rank loses its memory.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ftlaunch.common.formatting import size
from ftlaunch.memory.directory import count_pages, first_page, forget_steps, read_places, remove_memory
from ftlaunch.memory.recovery_plan import NONE, newest_common
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.files import held_dir
from ftlaunch_contract.files.dirlock import LOCK, DirLock, Locked, remove_stand_ins
from ftlaunch_contract.pages.page import open_pages
from ftlaunch_contract.progress import Advance, ignore

# Directories of ranks that ran without a supervisor. Such a directory has no lock file; its users hold it.
_UNSUPERVISED = re.compile(r"alone-\d+-\d+-\d+|meeting-[0-9a-f]+")


class CleanupRefused(Exception):
    """The memory directory must stay; the message says why."""


@dataclass(frozen=True)
class _Snapshots:
    """The newest step in a memory directory, and the newest one on storage."""

    step: int
    """newest step that all ranks have whole in memory; NONE if there is none"""
    stored: int
    """newest step on storage; NONE if there is none"""
    checkpoint_dir: Path | None
    """directory of the job's checkpoints; None if unknown"""

    @property
    def is_only_copy(self) -> bool:
        """Whether the snapshots are newer than every checkpoint."""
        return self.step > max(self.stored, 0)


def clean_job(directory: Path, force: bool, advance: Advance = ignore) -> str:
    """Remove a job's memory directory, and return a sentence about it.

    Args:
        directory: the memory directory.
        force: remove the directory even if its snapshots are newer than every checkpoint.
        advance: called with numbers of bytes as they are removed.

    Raises:
        CleanupRefused: a supervisor or its saver uses the directory, or the only copy of a step would be lost.
        OSError: the directory cannot be removed.
    """
    try:
        lock = DirLock(directory, patience=0.0)
    except Locked as error:
        raise CleanupRefused(str(error)) from error
    try:
        snapshots = _read_snapshots(directory)
        if snapshots.is_only_copy and not force:
            raise CleanupRefused(
                f"{directory} has the only copy of step {snapshots.step}: {_describe_stored(snapshots)};"
                " the same `ftlaunch` command goes on from there, --force throws it away"
            )
        freed = bytes_of(directory)
        forget_steps(directory)
        for slot in directory.glob("slot_*"):
            slot_bytes = bytes_of(slot)
            layout.remove_slot(slot)
            advance(slot_bytes)
        remove_memory(directory)
    finally:
        lock.release()
    held = "no snapshots"
    if snapshots.step >= 0:
        held = f"snapshots of step {snapshots.step} ({_describe_stored(snapshots)})"
    return f"removed {directory}: {size(freed)}, {held}"


def _describe_stored(snapshots: _Snapshots) -> str:
    """Say what storage has of the job."""
    if snapshots.checkpoint_dir is None:
        return "where its checkpoints are is not known"
    if snapshots.stored == NONE:
        return f"there is no checkpoint in {snapshots.checkpoint_dir}"
    return f"step {snapshots.stored} is the newest in {snapshots.checkpoint_dir}"


def _read_snapshots(directory: Path) -> _Snapshots:
    """Find the newest step in a memory directory, and the newest checkpoint of the same job."""
    places = read_places(directory)
    checkpoint_dir = None
    stored = NONE
    if places is not None:
        checkpoint_dir = Path(places.checkpoint_dir)
        stored = max((step for step, _ in layout.list_iterations(checkpoint_dir)), default=NONE)
    ranks = count_pages(directory)
    try:
        pages = open_pages(directory, ranks, first_page(directory))
    except (OSError, ValueError):
        return _Snapshots(NONE, stored, checkpoint_dir)  # no attempt could resume from these pages either
    slots = {rank: page.slot_steps() for rank, page in enumerate(pages) if page.valid}
    for page in pages:
        page.close()
    return _Snapshots(newest_common(slots, ranks), stored, checkpoint_dir)


def job_dirs(root: Path) -> list[Path]:
    """Return the memory directories under `root` that belong to jobs with a supervisor, sorted."""
    return sorted(path for path in _directories(root) if (path / LOCK).exists())


def sweep(root: Path) -> Iterator[str]:
    """Remove what killed ranks without a supervisor have left under `root`, and yield a sentence about each removal."""
    for directory in sorted(_directories(root)):
        if (directory / LOCK).exists() or not _UNSUPERVISED.fullmatch(directory.name):
            continue
        held = held_dir.claim_abandoned(directory)
        if held is None:
            continue
        freed = bytes_of(directory)
        with contextlib.suppress(OSError):
            layout.remove_slots(directory)
        shutil.rmtree(directory, ignore_errors=True)  # another sweep may remove it at the same time
        os.close(held)
        if not directory.exists():
            yield f"removed {directory}: {size(freed)}, of processes that are gone"
    remove_stand_ins(root)
    with contextlib.suppress(OSError):  # `root` is not empty, or does not exist
        root.rmdir()


def _directories(root: Path) -> list[Path]:
    """Return the real directories in `root`; none if there is no such directory."""
    try:
        return [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()]
    except FileNotFoundError:
        return []


def bytes_of(directory: Path) -> int:
    """Return the bytes that the files in a directory occupy; targets of links are not counted."""
    count = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            count += path.lstat().st_blocks * 512
    return count
