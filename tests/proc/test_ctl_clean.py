"""`ftctl clean`: what is of use stays, what is left over goes."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from tests.support.checkpoints import empty
from tests.support.ctl import ftctl, journal, start, started
from tests.support.harness import FtJob
from tests.support.leftovers import carriers
from tests.support.waiting import wait_for

from ftlaunch.memory.cleanup import sweep
from ftlaunch.memory.directory import places_of, write_places
from ftlaunch_contract.files import held_dir
from ftlaunch_contract.files.dirlock import DirLock, Locked
from ftlaunch_contract.files.private_dir import make_private
from ftlaunch_contract.pages.page import Page, create_page, page_path
from ftlaunch_contract.protocol import memory_root

pytestmark = pytest.mark.long


def kill(job: FtJob) -> None:
    """SIGKILL the supervisor, and wait until its saver has gone too: it holds the lock."""
    job.supervisor.kill()
    job.supervisor.wait()
    wait_for(lambda: not carriers(job.tag) and is_free(job.memory), "the end of ranks and saver")


def is_free(directory: Path) -> bool:
    """Whether nobody holds the lock: a process that ends has no environment any more, but still its files."""
    try:
        DirLock(directory, patience=0.0).release()
    except Locked:
        return False
    return True


def test_clean_leaves_a_running_job_alone(job: FtJob) -> None:
    start(job)
    job.wait_step(1)
    for words in ([job.run_dir], [job.run_dir, "--force"]):
        code, _, err = ftctl("clean", *words, cwd=job.home)
        assert code == 1
        assert err == (
            f"ftctl: cannot clean: {job.memory} is in use by a running supervisor (pid {job.supervisor.pid})\n"
        )
    assert job.status()
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 143
    code, out, err = ftctl("clean", job.run_dir, cwd=job.home)
    assert (code, err) == (0, "")
    assert job.job_id not in out


def test_clean_after_a_kill(job: FtJob) -> None:
    start(job)
    job.wait_step(3)
    kill(job)
    code, out, err = ftctl("clean", job.run_dir, cwd=job.home)
    assert (code, err) == (0, "")
    assert out.startswith(f"removed {job.memory}: ")
    assert out.endswith("no snapshots\n")
    assert not job.memory.exists()


def test_clean_keeps_the_only_copy_unless_forced(job: FtJob) -> None:
    start(job, HELD="1")
    job.wait_step(9)
    kill(job)
    code, _, err = ftctl("clean", job.job_id, cwd=job.home)
    assert code == 1
    assert f"{job.memory} has the only copy of step " in err
    assert f"there is no checkpoint in {job.run_dir / 'checkpoints'}; the same `ftlaunch` command goes on" in err
    empty(job.run_dir / "checkpoints", 1)
    code, _, err = ftctl("clean", job.run_dir, cwd=job.home)
    assert code == 1
    assert "step 1 is the newest in" in err
    newest = empty(job.run_dir / "checkpoints", 9_999_999)
    shutil.copytree(job.memory, job.home / "copy", ignore=shutil.ignore_patterns("*.sock"))
    assert ftctl("clean", job.run_dir, cwd=job.home)[0] == 0
    assert not job.memory.exists()
    shutil.rmtree(newest)
    make_private(job.memory)
    shutil.copytree(job.home / "copy", job.memory, dirs_exist_ok=True)
    job.memory.chmod(0o700)  # copytree gives it the mode of the copy
    code, out, _ = ftctl("clean", job.run_dir, "--force", cwd=job.home)
    assert code == 0
    assert "snapshots of step " in out
    assert not job.memory.exists()


def test_clean_by_job_id_when_only_memory_is_left(job: FtJob) -> None:
    start(job, HELD="1")
    job.wait_step(3)
    kill(job)
    shutil.rmtree(job.run_dir)
    assert ftctl("clean", job.job_id, cwd=job.home)[0] == 1
    assert ftctl("clean", job.job_id, "--force", cwd=job.home)[0] == 0
    assert not job.memory.exists()


@pytest.mark.parametrize("memory", ["/tmp", "/", "relative", str(memory_root(os.getuid()) / "a" / "b")])
def test_clean_removes_nothing_a_journal_makes_up(memory: str, tmp_path: Path) -> None:
    run_dir = journal(tmp_path / "run", started(memory_dir=memory))
    code, _, err = ftctl("clean", run_dir, "--force", cwd=tmp_path)
    assert code == 1
    assert "it is not in" in err


def test_sweep_of_what_ranks_without_a_supervisor_left(tmp_path: Path) -> None:
    root = tmp_path / "root"
    living, dead = root / "alone-7-1-4026531836", root / "alone-7-2-4026531836"
    over, meeting = (root / f"meeting-{letter}" for letter in "ab")
    job = root / "alone-1-1-1"  # a strange job id, but a job's: its supervisor's lock says so
    for directory in (living, dead, over, meeting, job):
        make_private(directory)
    (dead / "slot").write_bytes(b"x" * 5000)
    (job / "lock").touch()
    create_page(page_path(meeting, 0))
    held = [held_dir.hold(living, lambda: None), held_dir.hold(meeting, lambda: None, shared=True)]
    said = sorted(sweep(root))
    assert [sentence.partition(": ")[0] for sentence in said] == [f"removed {path}" for path in (dead, over)]
    assert said[1].endswith(": 0 B, of processes that are gone")
    assert sorted(root.iterdir()) == sorted([living, meeting, job])
    os.close(held.pop())
    assert [sentence.split()[1] for sentence in sweep(root)] == [f"{meeting}:"]
    os.close(held.pop())
    shutil.rmtree(job)
    assert [sentence.split()[1] for sentence in sweep(root)] == [f"{living}:"]
    assert not root.exists()
    assert list(sweep(root)) == []


def test_clean_knows_the_memory_of_killed_agents_and_what_only_they_have(tmp_path: Path) -> None:
    """Taken out: pages are looked for from rank 0 on, none is found, and the only copy of a step is thrown away."""
    job_id = f"nodes-{os.getpid()}"
    run_dir = journal(tmp_path / "run", started(job_id))
    memories = [memory_root(os.getuid()) / f"{job_id}.node{node}" for node in range(2)]
    for node, directory in enumerate(memories):
        make_private(directory)
        DirLock(directory).release()
        write_places(directory, places_of(run_dir, run_dir / "checkpoints"))
        for rank in (2 * node, 2 * node + 1):
            create_page(page_path(directory, rank))
            page = Page(page_path(directory, rank))
            page.set_slot(0, 7)
            page.close()
    code, _, err = ftctl("clean", run_dir, cwd=tmp_path)
    assert code == 1
    assert [f"{directory} has the only copy of step 7" in err for directory in memories] == [True, True]
    code, out, err = ftctl("clean", run_dir, "--force", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert out.count("snapshots of step 7") == 2
    assert not any(directory.exists() for directory in memories)
