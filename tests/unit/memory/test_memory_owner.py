"""Whose memory a job takes up."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.leftovers import mark

from ftlaunch.memory import memory_owner
from ftlaunch.memory.directory import (
    Places,
    memory_dir,
    memory_dir_apart,
    memory_dirs,
    places_of,
    read_places,
    remove_memory,
    write_places,
)
from ftlaunch.memory.memory_owner import OwnedMemory
from ftlaunch_contract.pages.page import create_page, page_path


class Jobs:
    """Jobs of one id, each with a run dir of its own."""

    def __init__(self, home: Path) -> None:
        self.home, self.job_id = home, f"test-{mark()}-{uuid.uuid4().hex[:8]}"
        self.said: list[str] = []

    def take(self, name: str, checkpoints: str = "") -> OwnedMemory:
        """The memory of a job."""
        run_dir = self.home / name
        run_dir.mkdir(exist_ok=True)
        places = places_of(run_dir, self.home / (checkpoints or f"{name}/checkpoints"))
        self.said.clear()
        return memory_owner.acquire(self.job_id, places, lambda _: None, self.said.append)

    def leave(self, name: str, checkpoints: str = "") -> Path:
        """A job is killed: its page stays."""
        taken = self.take(name, checkpoints)
        if not page_path(taken.directory, 0).exists():
            create_page(page_path(taken.directory, 0))
        taken.lock.release()
        return taken.directory


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path)
    yield jobs
    for directory in memory_dirs(jobs.job_id):
        remove_memory(directory)


def test_a_job_takes_up_its_own_memory(jobs: Jobs) -> None:
    assert jobs.leave("a") == jobs.leave("a") == memory_dir(jobs.job_id)
    assert jobs.said == []


def test_a_killed_job_of_the_same_id_keeps_its_memory(jobs: Jobs) -> None:
    first = jobs.leave("a")
    second = jobs.leave("b")
    assert second != first
    assert jobs.said == [
        f"{first} is the memory of another job (run dir {jobs.home}/a, checkpoints in {jobs.home}/a/checkpoints):"
        f" it is left alone; the memory of this job is {second}"
    ]
    assert jobs.leave("a") == first
    assert jobs.leave("b") == second, "also after a kill of its own"
    assert page_path(first, 0).exists()
    remove_memory(first)
    assert jobs.leave("b") == second, "also when the other is gone"


def test_a_running_job_of_the_same_id_keeps_its_memory(jobs: Jobs) -> None:
    first = jobs.take("a")
    second = jobs.take("b")
    assert first.directory != second.directory
    second.lock.release()
    first.lock.release()


def test_another_checkpoint_directory_is_another_job(jobs: Jobs) -> None:
    assert jobs.leave("a") != jobs.leave("a", checkpoints="elsewhere")


def test_another_directory_at_the_same_path_is_another_job(jobs: Jobs) -> None:
    """As in two containers, or after the run dir was moved away."""
    first = jobs.leave("a")
    (jobs.home / "a").rename(jobs.home / "moved")
    assert jobs.leave("a") != first


def test_one_directory_by_two_paths_is_one_job(jobs: Jobs) -> None:
    first = jobs.leave("a")
    (jobs.home / "link").symlink_to(jobs.home / "a")
    assert jobs.leave("link") == first


@pytest.mark.parametrize("note", [b"", b"[]", b'{"run_dir": "/a", "checkpoint_dir": "/b"}'])
def test_pages_of_a_job_that_is_not_known_are_left_alone(jobs: Jobs, note: bytes) -> None:
    first = jobs.leave("a")
    (first / "places.json").write_bytes(note)
    assert jobs.leave("a") != first
    assert "of a job that is not known" in jobs.said[0]
    assert page_path(first, 0).exists()


def test_a_directory_without_pages_is_nobodys(jobs: Jobs) -> None:
    """A supervisor was killed before it had made its pages."""
    taken = jobs.take("a")
    (taken.directory / "places.json").unlink()
    taken.lock.release()
    assert jobs.leave("b") == taken.directory
    assert read_places(taken.directory) == places_of(jobs.home / "b", jobs.home / "b" / "checkpoints")


def test_a_directory_that_was_made_is_given_back(jobs: Jobs) -> None:
    jobs.take("a").give_back()
    assert memory_dirs(jobs.job_id) == []


def test_the_name_apart_is_no_job_id_and_short(tmp_path: Path) -> None:
    places = places_of(tmp_path, tmp_path)
    name = memory_dir_apart("j" * 64, places).name
    assert "@" in name
    assert len(name) == 64
    assert os.path.dirname(memory_dir_apart("j", places)) == os.path.dirname(memory_dir("j"))


def test_the_note_is_replaced_whole(tmp_path: Path) -> None:
    places = places_of(tmp_path, tmp_path / "missing")
    write_places(tmp_path, places)
    assert read_places(tmp_path) == places
    assert [path.name for path in tmp_path.iterdir()] == ["places.json"]


def test_what_a_killed_head_has_left_is_removed_and_nothing_else(jobs: Jobs) -> None:
    def places(name: str) -> Places:
        return places_of(jobs.home / name, jobs.home / f"{name}/checkpoints")

    left, other = jobs.leave("a"), jobs.leave("b")
    assert left != other
    memory_owner.remove_unowned(jobs.job_id, places("b"))
    assert (left.is_dir(), other.exists()) == (True, False)
    living = jobs.take("a")
    memory_owner.remove_unowned(jobs.job_id, places("a"))
    assert left.is_dir()
    living.lock.release()
    memory_owner.remove_unowned(jobs.job_id, places("a"))
    assert not left.exists()
    memory_owner.remove_unowned(jobs.job_id, places("a"))
