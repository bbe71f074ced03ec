"""A checkpoint directory belongs to one job at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.checkpoints import commit
from tests.support.waiting import wait_for

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.checkpoint.ownership import Custody
from ftlaunch_contract.files.dirlock import CHECKPOINT_LOCK, DirLock, Locked

HOLD = """\
import os, sys
from pathlib import Path
from ftlaunch_contract.checkpoint.ownership import Custody
custody = Custody(Path(sys.argv[1]), lambda pid: None, print)
if "fork" in sys.argv:
    custody.forsake_in_children()
    if not os.fork():
        sys.stdin.read()
        os._exit(0)
print("held", flush=True)
sys.stdin.read()
if "leave" in sys.argv:
    custody.leave()
"""


def never(pid: int) -> None:
    pytest.fail(f"waited for {pid}")


@contextmanager
def held(directory: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Another process holds the directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, directory, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.communicate()


def test_a_second_job_is_refused_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    with held(tmp_path / "a" / "b") as holder:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(Locked, match=rf"a/b is in use by a running job \(pid {holder.pid}\)"):
            Custody(tmp_path / "a" / "b", never, print)
        assert sorted(tmp_path.rglob("*")) == before


def test_where_nothing_was_saved_nothing_is_left(tmp_path: Path) -> None:
    with held(tmp_path / "a" / "b", "leave"):
        assert (tmp_path / "a" / "b" / CHECKPOINT_LOCK).exists()
    assert list(tmp_path.iterdir()) == []
    commit(tmp_path, 1)
    Custody(tmp_path / "checkpoints", never, print).leave()
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["iteration_0000001", layout.TRACKER]


def test_the_lock_dies_with_its_holder(tmp_path: Path) -> None:
    with held(tmp_path / "x") as holder:
        holder.kill()
        holder.wait()
        Custody(tmp_path / "x", never, print).leave()


def test_forked_children_do_not_hold_it(tmp_path: Path) -> None:
    """A data loader's workers may outlive a rank that was killed."""
    with held(tmp_path / "x", "fork") as holder:
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        child = wait_for(children.read_text, "the child").strip()
        lock = str(tmp_path / "x" / CHECKPOINT_LOCK)
        wait_for(lambda: lock not in [str(fd.readlink()) for fd in Path(f"/proc/{child}/fd").iterdir()], "its closing")
        holder.kill()
        holder.wait()
        Custody(tmp_path / "x", never, print).leave()


def test_a_holder_on_another_machine_lives(tmp_path: Path) -> None:
    """A pid of another machine says nothing here."""
    lock = DirLock(tmp_path, name=CHECKPOINT_LOCK)
    (tmp_path / CHECKPOINT_LOCK).write_text("1 1 elsewhere\n")
    with pytest.raises(Locked, match=r"in use by a running job \(pid 1 on elsewhere\)"):
        Custody(tmp_path, never, print)
    lock.release()


def test_a_file_system_without_locks_is_said_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)  # the edge: no such file system is at hand
    said: list[str] = []
    custody = Custody(tmp_path / "x", never, said.append)
    assert custody.fds == []
    assert "without locks" in said[0]
    custody.leave()


def test_what_was_never_finished_is_cleared_and_said_once(tmp_path: Path) -> None:
    commit(tmp_path, 3).rename(layout.incomplete_dir(tmp_path / "checkpoints", 3))
    said: list[str] = []
    custody = Custody(tmp_path / "checkpoints", never, said.append)
    assert custody.unfinished == [3]
    assert said == ["removed what an interrupted save or deletion has left of the checkpoint of step 3"]
    custody.leave()
    assert Custody(tmp_path / "checkpoints", never, said.append).unfinished == []
    assert len(said) == 1
