"""The directory of a copy is made below the job's memory, and never again once that memory is deleted."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from ftlaunch.nodes.peers.held.copy_writer import CopyWriter


def modes(*folders: Path) -> set[int]:
    return {stat.S_IMODE(folder.stat().st_mode) for folder in folders}


def test_the_directories_of_a_copy_are_the_users_own(tmp_path: Path) -> None:
    memory = tmp_path / "job"
    memory.mkdir()
    place = memory / "copies" / "3" / "0"
    for _ in range(2):
        CopyWriter(place, 3, {}, {}, None).close()
        assert modes(place, place.parent, place.parent.parent) == {0o700}


def test_a_jobs_memory_that_is_deleted_is_not_made_again(tmp_path: Path) -> None:
    """Taken out: the parent of all jobs is made with a mode that no later job accepts."""
    root = tmp_path / "jobs"
    memory = root / "job"
    memory.mkdir(parents=True)
    shutil.rmtree(root)
    with pytest.raises(FileNotFoundError):
        CopyWriter(memory / "copies" / "3" / "0", 3, {}, {}, None)
    assert not root.exists()
