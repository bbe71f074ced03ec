"""The file system of the run dir stands still in mid-job: the supervisor goes on; what waits is written afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import fuse
from tests.support.fuse import SlowDisk
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

from ftlaunch.system.control_socket import SOCKET, ask

SLOW = ("--step-time", "0.2")
SILENT = 5.0
"""seconds: longer than agents wait for a head, and a head for agents"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SlowDisk]:
    if why := fuse.why_not():
        pytest.skip(why)
    with fuse.mounted(tmp_path) as disk:
        yield disk


def attempt_of(job: FtJob) -> int:
    status = job.status()
    assert status is not None, "the supervisor does not answer"
    return int(status["attempt"])


def kill_a_rank(job: FtJob) -> None:
    status = job.status()
    assert status is not None
    os.kill(status["ranks"][1]["pid"], signal.SIGKILL)


@pytest.mark.slow
def test_a_job_restarts_while_only_its_journal_has_to_wait(job: FtJob, disk: SlowDisk, calm: FtJob) -> None:
    """Taken out (JournalSink writes in the loop): the supervisor does not answer while the disk is silent."""
    job.run_dir = disk.place / "run"
    places = ("--log-dir", str(job.home / "logs"), "--checkpoint-dir", str(job.home / "ck"))
    job.start(*places, args=("--out", str(job.out), *SLOW))
    job.wait_step(5)
    with disk.silent():
        kill_a_rank(job)
        wait_for(lambda: attempt_of(job) == 1, "the next attempt")
        job.wait_step(9)
    assert job.wait() == 0, job.stderr
    assert len(job.events("incident")) == 1
    assert job.events("resumed")[1]["source"] == "memory"
    assert job.final() == calm.final()
    job.assert_clean()


@pytest.mark.slow
def test_a_job_whose_whole_storage_is_silent_goes_on_once_it_answers(job: FtJob, disk: SlowDisk, calm: FtJob) -> None:
    """Taken out (FileThread.call without patience): the supervisor does not answer while the disk is silent."""
    job.run_dir = disk.place / "run"
    job.start("--max-restarts", "1", args=("--out", str(job.out), *SLOW))
    job.wait_step(5)
    with disk.silent():
        kill_a_rank(job)
        until = time.monotonic() + SILENT
        wait_for(lambda: attempt_of(job) == 0 and time.monotonic() > until, "seconds of silence")
    assert job.wait() == 0, job.stderr
    assert len(job.events("incident")) == len(job.events("files_answer")) == 1
    assert job.events("files_silent")
    assert job.final() == calm.final()
    job.assert_clean()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed (Debian: strace)")
def test_the_loop_touches_neither_run_dir_nor_logs_nor_checkpoints(job: FtJob) -> None:
    """Taken out (a sink that writes in the loop): the calls are listed."""
    job.start("--storage-interval", "5", "--log-timeout", "60s", args=("--out", str(job.out), "--steps", "100000"))
    job.wait_step(5)
    calls = job.home / "calls"
    words = ["strace", "-qq", "-y", "-o", str(calls), "-p", str(job.supervisor.pid)]  # of the main thread alone
    with subprocess.Popen(words) as strace:
        wait_for(lambda: calls.exists() and calls.stat().st_size, "strace to be attached")
        for attempt in (1, 2):
            kill_a_rank(job)
            wait_for(lambda: attempt_of(job) == attempt, f"attempt {attempt}")  # noqa: B023 - it is called here
            job.wait_step(5)
        ask(job.memory / SOCKET, {"do": "save"})
        job.wait_event("checkpoint_committed", 2)
        strace.send_signal(signal.SIGINT)
    made = calls.read_text().splitlines()
    assert any(str(job.memory) in line for line in made), "nothing was seen"
    assert [line for line in made if f'"{job.home}' in line or f"<{job.home}/" in line] == []
    job.supervisor.terminate()
    job.wait()
    job.assert_clean()
