"""Finds out which processes were the ranks of a supervisor or an agent that was killed, from the pages they wrote."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ftlaunch.memory.directory import page_files
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import process_start_time


def find_earlier_ranks(directory: Path) -> dict[int, int]:
    """Return the rank of each pid in the pages of a memory directory.

    Pids that belong to other processes by now are left out, and so are pages that cannot be read.

    Raises:
        OSError: the directory cannot be listed.
    """
    ranks = {}
    for path in page_files(directory):
        with contextlib.suppress(OSError, ValueError):
            page = Page(path)
            try:
                if page.pid and process_start_time(page.pid) in (0, page.start_time):
                    ranks[page.pid] = int(path.name.removeprefix("page_"))
            finally:
                page.close()
    return ranks
