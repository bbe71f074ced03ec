"""A directory is abandoned when no process holds it, in whatever PID namespace the process is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import wait_for

from ftlaunch.memory import cleanup
from ftlaunch_contract.files import held_dir
from ftlaunch_contract.files.dirlock import DirLock, Locked
from ftlaunch_hooks.standalone import memory_dirs

_RANK = """
import os, sys, time
from pathlib import Path
from ftlaunch_contract import protocol
from ftlaunch_hooks.standalone import memory_dirs
root = Path(sys.argv[1])
own = memory_dirs.memory_dir(root, os.getpid(), protocol.own_start_time())
memory_dirs.make(own)
(own / "slot_00000_0").mkdir()
running, begun = os.pipe()
if os.fork() == 0:  # as a DataLoader's worker
    os.write(begun, b".")
    time.sleep(60)
    os._exit(0)
os.read(running, 1)
print(own, flush=True)
time.sleep(60)
"""
_SWEEP = """
import sys
from pathlib import Path
from ftlaunch.memory import cleanup
from ftlaunch_hooks.standalone import memory_dirs
if sys.argv[2] == "rank":
    memory_dirs.sweep(Path(sys.argv[1]))
else:
    print(*cleanup.sweep(Path(sys.argv[1])))
"""
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")


def needs_namespaces() -> None:
    if subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("unshare(1) may make no PID namespace here: run as root (Debian: util-linux)")


class Rank:
    """A process with a memory directory, and a child that it has forked."""

    def __init__(self, root: Path, *prefix: str) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", _RANK, str(root)], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        self.directory = Path(self.process.stdout.readline().strip())

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def root(memory: Path) -> Iterator[Path]:
    root = memory / "root"
    root.mkdir(mode=0o700)
    yield root


@pytest.mark.parametrize("sweeper", ["rank", "ftctl"])
def test_a_living_rank_of_another_pid_namespace_keeps_its_memory(root: Path, sweeper: str) -> None:
    """Taken out (pid and start time decide): the sweeper cannot see the process, and deletes its memory."""
    needs_namespaces()
    rank = Rank(root)
    try:
        assert rank.directory.is_dir()
        command = [*NAMESPACE, sys.executable, "-c", _SWEEP, str(root), sweeper]
        assert subprocess.run(command, check=True, capture_output=True).stdout.strip() == b""
        assert (rank.directory / "slot_00000_0").is_dir()
    finally:
        rank.end()
    subprocess.run(command, check=True, capture_output=True)
    assert not rank.directory.exists()


def test_a_rank_in_another_pid_namespace_keeps_its_memory(root: Path) -> None:
    needs_namespaces()
    rank = Rank(root, *NAMESPACE)
    try:
        memory_dirs.sweep(root)
        assert list(cleanup.sweep(root)) == []
        assert rank.directory.is_dir()
    finally:
        rank.end()
    wait_for(lambda: [*cleanup.sweep(root)] or not rank.directory.exists(), "the end of the rank")
    assert not rank.directory.exists()


def test_a_forked_child_does_not_hold_its_parents_memory(root: Path) -> None:
    """Taken out (`register_at_fork`): the directory stays for as long as a DataLoader's worker lives."""
    rank = Rank(root)
    os.kill(rank.process.pid, signal.SIGKILL)
    rank.process.wait()
    try:
        memory_dirs.sweep(root)
        assert not rank.directory.exists()
    finally:
        rank.end()


def test_the_holder_of_a_lock_in_another_pid_namespace_lives(tmp_path: Path) -> None:
    """Taken out (the namespace in the note): it is taken for dead, and its saver is waited for."""
    needs_namespaces()
    program = "import sys, time; from pathlib import Path; from ftlaunch_contract.files.dirlock import DirLock\n"
    program += "lock = DirLock(Path(sys.argv[1])); print(lock.fd, flush=True); time.sleep(60)"
    holder = subprocess.Popen(
        [*NAMESPACE, sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline()
    with pytest.raises(Locked, match="in use by a running supervisor"):
        DirLock(tmp_path, lambda pid: pytest.fail(f"waited for {pid}"))
    os.killpg(holder.pid, signal.SIGKILL)
    holder.communicate()


def test_a_directory_that_is_deleted_while_it_is_taken_is_made_again(tmp_path: Path) -> None:
    place, made = tmp_path / "place", []

    def make() -> None:
        place.mkdir(exist_ok=True)
        made.append(place.stat().st_ino)
        if len(made) == 1:
            place.rmdir()  # a sweep took it for abandoned

    fd = held_dir.hold(place, make)
    assert len(made) == 2
    assert held_dir.claim_abandoned(place) is None
    os.close(fd)
    claimed = held_dir.claim_abandoned(place)
    assert claimed is not None
    os.close(claimed)
    assert held_dir.claim_abandoned(tmp_path / "nowhere") is None
