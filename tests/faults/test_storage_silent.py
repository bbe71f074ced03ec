"""Storage that does not answer: the saver is in a system call that does not come back, and cannot even be killed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.support.disks import ext4, make_ext4, needs_root
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

FREEZE = shutil.which("fsfreeze")
SLOW = ("--steps", "60", "--step-time", "0.03")


@contextmanager
def frozen(place: Path) -> Iterator[None]:
    """Whatever writes to a file system waits in the kernel, where no signal reaches it."""
    assert FREEZE is not None
    subprocess.run([FREEZE, "--freeze", place], check=True)
    try:
        yield
    finally:
        subprocess.run([FREEZE, "--unfreeze", place], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if FREEZE is None:
        pytest.skip("fsfreeze is not installed (Debian: util-linux)")
    make_ext4(tmp_path / "image", 64 << 20)
    with ext4(tmp_path / "image", tmp_path / "disk"):
        yield tmp_path / "disk"


def saver_of(job: FtJob) -> psutil.Process:
    children = psutil.Process(job.supervisor.pid).children()
    return next(child for child in children if "ftlaunch.checkpoints.saver" in " ".join(child.cmdline()))


@needs_root
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("SIGTERM",), id="SIGTERM", marks=pytest.mark.slow),
        pytest.param(("SIGINT", "SIGINT"), id="Ctrl-C twice", marks=pytest.mark.slow),
    ],
)
def test_a_job_stops_all_the_same(job: FtJob, disk: Path, calm: FtJob, words: tuple[str, ...]) -> None:
    """Taken out (GRACE_OVER ignored in LAST_GASP): the supervisor does not end before the disk is thawed."""
    options = ("--checkpoint-dir", str(disk / "ck"), "--storage-interval", "5", "--grace", "4s")
    args = ("--out", str(job.out), "--step-time", "0.2")  # it trains on while it is told to stop
    job.start(*options, args=args)
    job.wait_event("checkpoint_committed")
    saver = saver_of(job)
    with frozen(disk):
        wait_for(lambda: saver.status() == psutil.STATUS_DISK_SLEEP, "the saver to hang")
        saver.send_signal(signal.SIGKILL)
        assert saver.status() == psutil.STATUS_DISK_SLEEP, "it cannot be killed"
        for word in words:
            job.supervisor.send_signal(getattr(signal, word))
            wait_for(lambda: job.events("stop_requested"), "the stop")
            time.sleep(0.6)  # a second Ctrl-C counts half a second after the first
        assert job.wait() == 1, job.stderr
        last = job.stderr.splitlines()[-1]
        assert "storage has not answered for " in last
        assert f"({disk}/ck); it stays in {job.memory}: the same `ftlaunch` command goes on from it" in last
    step = int(last.partition("of step ")[2].partition(",")[0])
    wait_for(lambda: not saver.is_running(), "the end of the saver")
    job.start(*options, args=args)
    assert job.wait() == 0, job.stderr
    resumed = job.events("resumed")[1]
    assert (resumed["source"], resumed["step"]) == ("memory", step)
    assert job.losses() == calm.losses()
    assert job.final() == calm.final()
    job.assert_clean()
