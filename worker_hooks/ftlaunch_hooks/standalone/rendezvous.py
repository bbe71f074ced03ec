"""Lets the ranks of a node find each other without a supervisor, and map each other's pages.

Each rank makes its page in a directory whose name all ranks can compute. A page counts only while its writer lives.
Once every rank has mapped every page, the files are deleted, so that a SIGKILL leaves nothing to clean up. On one of
several nodes the files stay instead in the node's memory directory, and tell the ranks of the next attempt which steps
the slots hold. attach() runs this code, in the thread that trains.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ftlaunch_contract import protocol
from ftlaunch_contract.files import held_dir
from ftlaunch_contract.files.private_dir import make_private
from ftlaunch_contract.pages.page import Page, create_page, page_path
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.protocol import Flag
from ftlaunch_contract.schedulers.table import job_variables
from ftlaunch_hooks.standalone.settings import AloneError

_PATIENCE_SECONDS = 300.0  # the time that the ranks of a node have to find each other
_NAMES = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")


def rendezvous(root: Path, rank: int, world_size: int, attempt: int) -> list[Page]:
    """Meet the other ranks of a job that runs on this node only.

    Args:
        root: the directory of all memory directories of this user.
        rank: this rank's number.
        world_size: the number of ranks of the job.
        attempt: the number of the attempt, for this rank's page.

    Returns:
        The pages of all ranks in the order of the ranks, this rank's included.

    Raises:
        AloneError: not all ranks have come within five minutes.
        NotPrivate: other users may write to the directory.
        OSError: the directory or the page cannot be made.
    """
    meeting = _meeting_dir(root, world_size)
    held = held_dir.hold(meeting, lambda: make_private(meeting), shared=True)
    try:
        own = _own_page(page_path(meeting, rank), attempt)
        pages = _meet(meeting, rank, ranks=range(world_size), own=own)
        with suppress(FileNotFoundError):
            page_path(meeting, rank).unlink()
        with suppress(OSError):
            meeting.rmdir()  # only the last rank succeeds
    finally:
        os.close(held)
    return pages


def meet_in(place: Path, rank: int, ranks: range, attempt: int) -> list[Page]:
    """Meet the other ranks of one of several nodes in the node's memory directory, where the pages stay.

    Args:
        place: the memory directory of the node.
        rank: this rank's number in the job.
        ranks: the ranks of the node.
        attempt: the number of the attempt, for this rank's page.

    Returns:
        The pages of the node's ranks in the order of the ranks, this rank's included.

    Raises:
        AloneError: not all ranks have come within five minutes.
        OSError: the page cannot be made.
    """
    path = page_path(place, rank)
    own = _own_page(path, attempt, steps=_steps_before(path))
    return _meet(place, rank, ranks=ranks, own=own)


def _meet(directory: Path, rank: int, ranks: range, own: Page) -> list[Page]:
    pages = {rank: own}
    deadline = time.monotonic() + _PATIENCE_SECONDS
    if not wait_until(lambda: _map_others(directory, pages, ranks), deadline):
        missing = sorted(set(ranks) - set(pages))
        raise AloneError(f"cannot attach: rank {missing[0]} did not attach within {_PATIENCE_SECONDS:.0f} s")
    pages[rank].raise_flag(Flag.MAPPED)
    if not wait_until(lambda: all(page.flags & Flag.MAPPED for page in pages.values()), deadline):
        raise AloneError(f"cannot attach: not all ranks attached within {_PATIENCE_SECONDS:.0f} s")
    return [pages[peer] for peer in ranks]


def _meeting_dir(root: Path, world_size: int) -> Path:
    """Return the directory that all ranks of a job compute from the launcher's environment."""
    # Two containers that share /dev/shm may have equal addresses, and pages hold pids: the name has the PID namespace.
    names = (*_NAMES, *job_variables())
    words = [*(os.environ.get(name, "") for name in names), str(held_dir.pid_namespace())]
    if world_size == 1:
        words.append(str(os.getpid()))
    return root / f"meeting-{hashlib.sha256(chr(0).join(words).encode()).hexdigest()[:16]}"


def _own_page(path: Path, attempt: int, steps: Sequence[int] = ()) -> Page:
    """Make this rank's page, which gets its name when it is complete.

    Args:
        path: the page's path.
        attempt: the number of the attempt.
        steps: the steps that the rank's slots hold already.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    create_page(fresh)
    page = Page(fresh)
    page.begin(attempt, os.getpid(), protocol.own_start_time())
    for slot, step in enumerate(steps):
        page.set_slot(slot, step)
    fresh.rename(path)
    return page


def _steps_before(path: Path) -> tuple[int, ...]:
    """Return the steps in this rank's slots, by the page of the rank's previous process; empty without such a page."""
    try:
        previous = Page(path)
    except (OSError, ValueError):
        return ()
    steps = previous.slot_steps() if previous.valid else ()
    previous.close()
    return steps


def _map_others(directory: Path, pages: dict[int, Page], ranks: range) -> bool:
    """Add the pages that have appeared, if their writers live. Return whether all are there."""
    for rank in ranks:
        if rank not in pages:
            try:
                page = Page(page_path(directory, rank))
            except (OSError, ValueError):
                continue
            if page.pid and protocol.process_start_time(page.pid) == page.start_time:
                pages[rank] = page
            else:
                page.close()  # the page of an earlier run that was killed
    return len(pages) == len(ranks)
