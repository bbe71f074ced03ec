"""The pages of a killed run say which processes its ranks were, and never name a process of somebody else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ftlaunch.memory.earlier_ranks import find_earlier_ranks
from ftlaunch_contract.pages.page import Page, create_page, page_path
from ftlaunch_contract.protocol import own_start_time


def write_page(directory: Path, rank: int, pid: int, start_time: int) -> None:
    path = page_path(directory, rank)
    create_page(path)
    page = Page(path)
    page.begin(0, pid, start_time)
    page.close()


def test_ranks_that_have_ended_or_still_end_are_found(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(60)
    write_page(tmp_path, 0, gone.pid, 12345)
    write_page(tmp_path, 1, os.getpid(), own_start_time())
    create_page(page_path(tmp_path, 2))  # of a rank that never called the hooks
    assert find_earlier_ranks(tmp_path) == {gone.pid: 0, os.getpid(): 1}


def test_a_pid_that_is_another_process_now_is_left_out(tmp_path: Path) -> None:
    """Taken out (the start time): ranks wait ten seconds for the GPU memory of a stranger, which is not to be freed."""
    write_page(tmp_path, 0, os.getpid(), own_start_time() - 1)
    assert find_earlier_ranks(tmp_path) == {}


def test_a_page_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    page_path(tmp_path, 0).write_bytes(b"torn")
    write_page(tmp_path, 1, os.getpid(), own_start_time())
    assert find_earlier_ranks(tmp_path) == {os.getpid(): 1}


def test_a_first_start_has_none(tmp_path: Path) -> None:
    assert find_earlier_ranks(tmp_path / "none") == {}
