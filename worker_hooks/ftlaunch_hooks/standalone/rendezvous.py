"""How the ranks of a node find each other without a supervisor, and map each other's pages.

Each rank makes its page in a directory whose name all ranks can work out. A page counts only while its writer lives.
Once every rank has mapped every page, the files are deleted: a SIGKILL leaves nothing to clean up. In the memory of a
node of several they stay instead, and tell the ranks of the next attempt which steps the slots hold.
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
from ftlaunch_hooks.standalone.settings import AloneError

_PATIENCE = 300.0  # seconds the ranks of a node have to find each other
_NAMES = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID")


def rendezvous(root: Path, rank: int, world_size: int, attempt: int) -> list[Page]:
    """The pages of all ranks, in their order, this rank's own among them. Raises AloneError or OSError."""
    place = _place(root, world_size)
    held = held_dir.hold(place, lambda: make_private(place), shared=True)
    try:
        pages = _meet(place, rank, range(world_size), _own_page(page_path(place, rank), attempt))
        with suppress(FileNotFoundError):
            page_path(place, rank).unlink()
        with suppress(OSError):
            place.rmdir()  # only the last rank succeeds
    finally:
        os.close(held)
    return pages


def meet_in(place: Path, rank: int, ranks: range, attempt: int) -> list[Page]:
    """The same in the memory of a node, which holds the slots and keeps the pages. Raises AloneError or OSError."""
    path = page_path(place, rank)
    return _meet(place, rank, ranks, _own_page(path, attempt, _steps_before(path)))


def _meet(place: Path, rank: int, ranks: range, own: Page) -> list[Page]:
    pages = {rank: own}
    deadline = time.monotonic() + _PATIENCE
    if not wait_until(lambda: _map_others(place, pages, ranks), deadline):
        missing = sorted(set(ranks) - set(pages))
        raise AloneError(f"cannot attach: rank {missing[0]} did not attach within {_PATIENCE:.0f} s")
    pages[rank].raise_flag(Flag.MAPPED)
    if not wait_until(lambda: all(page.flags & Flag.MAPPED for page in pages.values()), deadline):
        raise AloneError(f"cannot attach: not all ranks attached within {_PATIENCE:.0f} s")
    return [pages[one] for one in ranks]


def _place(root: Path, world_size: int) -> Path:
    # two containers that share /dev/shm may have equal addresses, and the pages speak of pids
    words = [*(os.environ.get(name, "") for name in _NAMES), str(held_dir.pid_namespace())]
    if world_size == 1:
        words.append(str(os.getpid()))
    return root / f"meeting-{hashlib.sha256(chr(0).join(words).encode()).hexdigest()[:16]}"


def _own_page(path: Path, attempt: int, steps: Sequence[int] = ()) -> Page:
    """Make this rank's page; it gets its name when it is complete. steps: what its slots hold already."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    create_page(fresh)
    page = Page(fresh)
    page.begin(attempt, os.getpid(), protocol.own_start_time())
    for slot, step in enumerate(steps):
        page.set_slot(slot, step)
    fresh.rename(path)
    return page


def _steps_before(path: Path) -> tuple[int, ...]:
    """What the slots of this rank hold by the page that the process before it has left; empty without one."""
    try:
        before = Page(path)
    except (OSError, ValueError):
        return ()
    steps = before.slot_steps() if before.valid else ()
    before.close()
    return steps


def _map_others(place: Path, pages: dict[int, Page], ranks: range) -> bool:
    for rank in ranks:
        if rank not in pages:
            try:
                page = Page(page_path(place, rank))
            except (OSError, ValueError):
                continue
            if page.pid and protocol.process_start_time(page.pid) == page.start_time:
                pages[rank] = page
            else:
                page.close()  # the page of an earlier run that was killed
    return len(pages) == len(ranks)
