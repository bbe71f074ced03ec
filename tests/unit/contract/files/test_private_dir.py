"""A directory for one job among those of a user: made while others end, refused where others may write to it."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from ftlaunch_contract.files.private_dir import NotPrivate, make_private


def test_the_last_other_job_ends_meanwhile(tmp_path: Path) -> None:
    """It removes what it finds empty. Taken out: without the second try one in some hundred fails."""
    root, over, removed = tmp_path / "user", threading.Event(), 0

    def end_jobs() -> None:
        nonlocal removed
        while not over.is_set():
            with contextlib.suppress(OSError):
                root.rmdir()
                removed += 1

    ending = threading.Thread(target=end_jobs)
    ending.start()
    try:
        for _ in range(600):
            make_private(root / "job")
            (root / "job").rmdir()
    finally:
        over.set()
        ending.join()
    assert removed > 20


def test_where_there_is_no_place_for_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        make_private(tmp_path / "gone" / "user" / "job")


def test_where_others_may_write(tmp_path: Path) -> None:
    (tmp_path / "user").mkdir(mode=0o755)
    with pytest.raises(NotPrivate):
        make_private(tmp_path / "user" / "job")
