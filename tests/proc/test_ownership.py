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
from tests.support.descriptors import descriptors
from tests.support.refusing import stand_ins, without_flock
from tests.support.waiting import wait_for

from ftlaunch.memory import cleanup
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.tools.preflight import disk, rules
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.checkpoint.ownership import Custody
from ftlaunch_contract.files.dirlock import CHECKPOINT_LOCK, DirLock, Locked
from ftlaunch_contract.protocol import memory_root, process_start_time

HOLD = """\
import os, sys
from pathlib import Path
from ftlaunch_contract.checkpoint.ownership import Custody
custody = Custody(Path(sys.argv[1]), lambda pid: None, sys.stderr.write)
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


def holds(custody: Custody, directory: Path) -> bool:
    """Whether this process holds the directory's lock."""
    (fd,) = custody.fds
    return os.path.samestat(os.fstat(fd), (directory / CHECKPOINT_LOCK).stat())


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
        custody = Custody(tmp_path / "x", never, print)
        assert holds(custody, tmp_path / "x")
        custody.leave()


def test_forked_children_do_not_hold_it(tmp_path: Path) -> None:
    """A data loader's workers may outlive a rank that was killed."""
    with held(tmp_path / "x", "fork") as holder:
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        child = wait_for(children.read_text, "the child").strip()
        lock = str(tmp_path / "x" / CHECKPOINT_LOCK)
        wait_for(lambda: lock not in descriptors(int(child)), "its closing")
        holder.kill()
        holder.wait()
        assert Path(f"/proc/{child}").exists()
        custody = Custody(tmp_path / "x", never, print)
        assert holds(custody, tmp_path / "x")
        custody.leave()


def test_a_process_that_was_replaced_holds_nobody_up(tmp_path: Path) -> None:
    """A server may hold the lock of a lost machine for long: its file is replaced, for this one holder only."""
    held = DirLock(tmp_path)
    me = os.getpid(), process_start_time(os.getpid())
    with pytest.raises(Locked):
        DirLock(tmp_path, gone=(me[0], me[1] + 1))
    taken = DirLock(tmp_path, gone=me)
    assert os.fstat(held.fd).st_nlink == 0
    with pytest.raises(Locked):
        DirLock(tmp_path)
    taken.release()
    held.release()


def test_a_holder_on_another_machine_lives(tmp_path: Path) -> None:
    """A pid of another machine says nothing here."""
    lock = DirLock(tmp_path, name=CHECKPOINT_LOCK)
    (tmp_path / CHECKPOINT_LOCK).write_text("1 1 elsewhere\n")
    with pytest.raises(Locked, match=r"in use by a running job \(pid 1 on elsewhere\)"):
        Custody(tmp_path, never, print)
    lock.release()


# --- where the file system has no locks -------------------------------------------------------------------------


@pytest.fixture
def no_flock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on a file system without locks, for this process and for those that it starts."""
    for name, value in without_flock(tmp_path).items():
        monkeypatch.setenv(name, value)
    flock, memory = fcntl.flock, os.stat("/dev/shm").st_dev

    def refuse(fd: int, operation: int) -> None:
        if os.fstat(fd).st_dev != memory:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", refuse)  # the edge: no such file system is at hand
    return tmp_path / "x"


def refusals(directory: Path) -> int:
    """How often a lock in a directory was refused to another process."""
    return (directory.parent / "no_flock").read_text().split().count(str(directory / CHECKPOINT_LOCK))


def test_without_locks_a_second_job_on_this_machine_is_refused(no_flock: Path) -> None:
    """Taken out (the stand-in, so that nothing is locked): the second job saves there, too."""
    with held(no_flock) as holder:
        assert refusals(no_flock) == 1
        assert len(stand_ins(no_flock)) == 1
        with pytest.raises(Locked, match=rf"/x is in use by a running job \(pid {holder.pid}\)"):
            Custody(no_flock, never, print)
        other_name = no_flock.with_name("link")
        other_name.symlink_to(no_flock)
        with pytest.raises(Locked):
            Custody(other_name, never, print)
        holder.kill()
        holder.wait()
        said: list[str] = []
        custody = Custody(no_flock, never, said.append)
        assert said == [
            f"warning: {no_flock} is on a file system without locks: only your own jobs on this machine are kept out;"
            " see to it that no other machine works there at the same time"
        ]
        with pytest.raises(Locked):
            DirLock(no_flock, patience=0.0, name=CHECKPOINT_LOCK)
        custody.leave()
    assert stand_ins(no_flock.parent) == []


def test_without_locks_a_holder_on_another_machine_is_named(no_flock: Path) -> None:
    """Its note is all there is. Who gives the lock back takes the note away. Taken out (`ftruncate`): it is named."""
    no_flock.mkdir()
    (no_flock / CHECKPOINT_LOCK).write_text("17 1 elsewhere 4026531836\n")
    lock = DirLock(no_flock, name=CHECKPOINT_LOCK)
    assert lock.warning.endswith("at the same time: pid 17 on elsewhere has not given it back, and may live")
    assert (no_flock / CHECKPOINT_LOCK).read_text().split()[0] == str(os.getpid())
    lock.release()
    assert (no_flock / CHECKPOINT_LOCK).read_text() == ""
    again = DirLock(no_flock, name=CHECKPOINT_LOCK)
    assert again.warning.endswith("at the same time")
    again.release()
    assert stand_ins(no_flock) == []


def test_without_locks_forked_children_do_not_hold_it(no_flock: Path) -> None:
    """Taken out (`forsake` in the child): the child holds the lock."""
    with held(no_flock, "fork") as holder:
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        child = wait_for(children.read_text, "the child").strip()
        (stand_in,) = stand_ins(no_flock)
        wait_for(lambda: str(stand_in) not in descriptors(int(child)), "it")
        assert stand_ins(no_flock) == [stand_in], "the child takes nothing away from its parent"
        holder.kill()
        holder.wait()
        Custody(no_flock, never, print).leave()
    assert stand_ins(no_flock.parent) == []


def test_a_saver_holds_the_lock_that_stands_in(no_flock: Path) -> None:
    """As a saver inherits it. Taken out (`_claim`, so that nobody is asked): the lock is free while the saver works."""
    no_flock.mkdir()
    lock = DirLock(no_flock, name=CHECKPOINT_LOCK)
    saver = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[lock.fd])
    lock.release()
    assert len(stand_ins(no_flock)) == 1, "it is held still"
    with pytest.raises(Locked):
        DirLock(no_flock, patience=0.0, name=CHECKPOINT_LOCK)
    list(cleanup.sweep(memory_root(os.getuid())))
    assert len(stand_ins(no_flock)) == 1
    saver.communicate()
    list(cleanup.sweep(memory_root(os.getuid())))
    assert stand_ins(no_flock) == [], "`ftctl clean` removes it"


def test_ftctl_check_says_where_there_are_no_locks(no_flock: Path) -> None:
    no_flock.mkdir()
    facts = disk.ask(HelperProcesses(), no_flock, 60.0, [no_flock, Path("/dev/shm")])
    assert facts["locks"] == {str(no_flock): "function not implemented", "/dev/shm": ""}
    found = rules.locks(facts)
    assert (found.status, found.found) == ("warn", f"none in {no_flock} (function not implemented)")
    assert rules.locks({**facts, "locks": {"/dev/shm": ""}}).status == "ok"
    skipped = rules.locks({"error": "read-only file system"})
    assert (skipped.status, skipped.found) == ("skip", "not checked, because the disk check failed")


def test_what_was_never_finished_is_cleared_and_said_once(tmp_path: Path) -> None:
    commit(tmp_path, 3).rename(layout.incomplete_dir(tmp_path / "checkpoints", 3))
    said: list[str] = []
    custody = Custody(tmp_path / "checkpoints", never, said.append)
    assert custody.unfinished == [3]
    assert said == ["removed what an interrupted save or deletion has left of the checkpoint of step 3"]
    custody.leave()
    assert Custody(tmp_path / "checkpoints", never, said.append).unfinished == []
    assert len(said) == 1
