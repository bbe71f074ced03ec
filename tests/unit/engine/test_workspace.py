"""What a supervisor makes of `load_checkpoint` before it starts a rank."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.checkpoints import checkpoint, steps

from ftlaunch.engine.workspace import Unusable, Workspace
from ftlaunch.spec.resolve import resolve
from ftlaunch_contract.checkpoint.initial import InitialCheckpoint
from ftlaunch_contract.pages.page import Page, page_path
from ftlaunch_contract.protocol import memory_root


class Starts:
    """The places of one job, taken again and again."""

    def __init__(self) -> None:
        self.job_id = f"test-{uuid.uuid4().hex[:12]}"
        self.memory = memory_root(os.getuid()) / self.job_id
        self.own = Path("ck").absolute()
        self.said: list[str] = []

    def start(self, in_memory: int = -1, **flags: str) -> InitialCheckpoint | None:
        """What the ranks are to begin with, in a job that leaves a snapshot of `in_memory` behind."""
        self.said.clear()
        Path("train.py").touch()
        flags = {"job_id": self.job_id, "checkpoint_dir": str(self.own), **flags}
        home = Workspace(resolve("train.py", [], flags, {}), self.said.append)
        load = home.load
        if in_memory >= 0:
            page = Page(page_path(self.memory, 0))
            page.set_slot(0, in_memory)
            page.close()
        if in_memory < 0:
            home.forget_memory()
        home.leave()
        return load


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starts]:
    monkeypatch.chdir(tmp_path)
    starts = Starts()
    yield starts
    shutil.rmtree(starts.memory, ignore_errors=True)


def test_going_back_puts_aside_what_is_newer_once(starts: Starts) -> None:
    for step in (10, 20, 30):
        checkpoint(starts.own, step)
    assert starts.start(load_checkpoint="20") is None
    assert starts.said[0].startswith("going back to step 20; later checkpoints are now in ")
    assert steps(starts.own) == [20, 10]
    checkpoint(starts.own, 25)
    assert starts.start(load_checkpoint="20") is None
    assert starts.said[0].startswith("this job went back to step 20 before")
    assert steps(starts.own) == [25, 20, 10]
    starts.start(load_checkpoint="20", fresh="true")
    assert steps(starts.own) == [20, 10]


def test_another_jobs_checkpoint_is_for_a_job_without_anything(starts: Starts, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "other", 7)
    assert starts.start(load_checkpoint=str(path), in_memory=0) == InitialCheckpoint(path, weights_only=False)
    assert starts.start(load_checkpoint=str(path)) is None, "a snapshot of step 0 is the job's own"
    assert "it has its own step 0: going on from that" in starts.said[0]
    assert starts.start(load_checkpoint=str(path), resume_training="false") == InitialCheckpoint(
        path, weights_only=True
    )
    checkpoint(starts.own, 3)
    assert starts.start(load_checkpoint=str(path)) is None
    assert "it has its own step 3: going on from that" in starts.said[0]
    shutil.rmtree(path)
    assert starts.start(load_checkpoint=str(path)) is None, "it is not needed any more"
    with pytest.raises(Unusable, match=r"cannot load .*: there is no such file or directory"):
        starts.start(load_checkpoint=str(path), fresh="true")
    assert steps(starts.own) == [3], "nothing is put aside for what cannot be had"


def test_what_cannot_be_loaded_leaves_nothing_behind(starts: Starts) -> None:
    for wish in ("5", "nowhere"):
        with pytest.raises(Unusable, match=r"^cannot load "):
            starts.start(load_checkpoint=wish)
        assert not starts.memory.exists()
        assert not Path("runs").exists()
        assert not starts.own.exists()


def test_where_nothing_can_be_locked_the_job_is_refused(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks, as Lustre without -o flock, is worked on: tests/proc/test_ownership.py."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(Unusable, match=r"^cannot start: .*Function not implemented$"):
        starts.start()
    assert not Path("runs").exists()


def test_a_part_that_cannot_be_given_back_keeps_none_of_the_others(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken out: where the journal cannot be closed, the locks stay, and a job in the same process cannot have them."""
    Path("train.py").touch()
    home = Workspace(resolve("train.py", [], {"job_id": starts.job_id}, {}), starts.said.append)
    close = home.journal.close

    def fail() -> None:
        close()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(home.journal, "close", fail)
    with pytest.raises(OSError, match="Input/output error"):
        home.leave()
    again = Workspace(home.spec, starts.said.append)
    again.forget_memory()
    again.leave()
