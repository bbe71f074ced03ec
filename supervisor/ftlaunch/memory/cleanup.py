"""Finds what killed jobs have left in memory, judges it, and removes it."""

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

_LEFT = re.compile(r"alone-\d+-\d+-\d+|meeting-[0-9a-f]+")  # of ranks without a supervisor, each held by its users


class CleanupRefused(Exception):
    """The memory directory must stay; the message says why."""


@dataclass(frozen=True)
class _Snapshots:
    """What a memory directory holds, and what storage has of it; NONE where there is nothing."""

    step: int
    stored: int
    checkpoint_dir: Path | None

    @property
    def only_copy(self) -> bool:
        return self.step > max(self.stored, 0)


def clean_job(directory: Path, force: bool, advance: Advance = ignore) -> str:
    """Remove a job's memory directory; returns a sentence about it. advance: told of bytes that are removed.

    Raises CleanupRefused while a supervisor or its saver uses it, and without `force` where its snapshots are newer
    than every checkpoint; OSError when it cannot be removed.
    """
    try:
        lock = DirLock(directory, patience=0.0)
    except Locked as error:
        raise CleanupRefused(str(error)) from error
    try:
        snapshots = _snapshots(directory)
        if snapshots.only_copy and not force:
            raise CleanupRefused(
                f"{directory} has the only copy of step {snapshots.step}: {_newest(snapshots)};"
                " the same `ftlaunch` command goes on from there, --force throws it away"
            )
        freed = bytes_of(directory)
        forget_steps(directory)
        for slot in directory.glob("slot_*"):
            taken = bytes_of(slot)
            layout.remove_slot(slot)
            advance(taken)
        remove_memory(directory)
    finally:
        lock.release()
    held = "no snapshots"
    if snapshots.step >= 0:
        held = f"snapshots of step {snapshots.step} ({_newest(snapshots)})"
    return f"removed {directory}: {size(freed)}, {held}"


def _newest(snapshots: _Snapshots) -> str:
    if snapshots.checkpoint_dir is None:
        return "where its checkpoints are is not known"
    if snapshots.stored == NONE:
        return f"there is no checkpoint in {snapshots.checkpoint_dir}"
    return f"step {snapshots.stored} is the newest in {snapshots.checkpoint_dir}"


def _snapshots(directory: Path) -> _Snapshots:
    places = read_places(directory)
    checkpoint_dir = Path(places.checkpoint_dir) if places else None
    stored = max((step for step, _ in layout.list_iterations(checkpoint_dir)), default=NONE) if checkpoint_dir else NONE
    ranks, first = count_pages(directory), first_page(directory)
    try:
        pages = open_pages(directory, ranks, first)
    except (OSError, ValueError):
        return _Snapshots(NONE, stored, checkpoint_dir)  # no attempt could resume from these pages either
    slots = {rank: page.slot_steps() for rank, page in enumerate(pages) if page.valid}
    for page in pages:
        page.close()
    return _Snapshots(newest_common(slots, ranks), stored, checkpoint_dir)


def job_dirs(root: Path) -> list[Path]:
    """Memory directories of jobs under a supervisor."""
    return sorted(path for path in _directories(root) if (path / LOCK).exists())


def sweep(root: Path) -> Iterator[str]:
    """Remove what ranks without a supervisor left behind when they were killed; a sentence about each."""
    for directory in sorted(_directories(root)):
        if (directory / LOCK).exists():
            continue
        held = held_dir.claim_abandoned(directory) if _LEFT.fullmatch(directory.name) else None
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
    with contextlib.suppress(OSError):  # there is more in it, or it is not there
        root.rmdir()


def _directories(root: Path) -> list[Path]:
    try:
        return [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()]
    except FileNotFoundError:
        return []


def bytes_of(directory: Path) -> int:
    """What a directory takes, without what it only links to."""
    count = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            count += path.lstat().st_blocks * 512
    return count
