"""Storage that is full, read-only, slow, damaged or somebody else's, under a job that trains on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.disks import ext4, make_ext4, private_dir, resize, tmpfs
from tests.support.harness import TINY, FtJob
from tests.support.waiting import wait_for

from ftlaunch_contract.checkpoint import layout, verify
from ftlaunch_contract.checkpoint.ownership import Custody
from ftlaunch_contract.files.dirlock import CHECKPOINT_LOCK

STRACE = shutil.which("strace")
WIDE = ("--width", "500")  # 3 MB of state


def args(job: FtJob, *more: str) -> tuple[str, ...]:
    return ("--out", str(job.out), *more)


def saver_of(job: FtJob) -> psutil.Process:
    children = psutil.Process(job.supervisor.pid).children()
    return next(child for child in children if "ftlaunch.checkpoints.saver" in " ".join(child.cmdline()))


def newest(checkpoints: Path) -> int:
    """The newest checkpoint's step; all must verify, and nothing half-made may lie beside them."""
    found = layout.list_iterations(checkpoints)
    for _, directory in found:
        verify.verify(directory)
    assert layout.list_incomplete(checkpoints) == []
    return found[0][0]


@pytest.fixture
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FtJob]:
    """A second job, in a home of its own."""
    job = FtJob(tmp_path_factory.mktemp("other"))
    yield job
    job.dispose()


# --- full, read-only, over quota, slow ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_full_disk_costs_no_step_and_no_checkpoint(job: FtJob) -> None:
    """Room for one checkpoint: the first stays, training goes on; told to stop, the job says where its state is."""
    with tmpfs(job.home / "disk", "5m") as disk:
        words = ("--checkpoint-dir", str(disk), "--storage-interval", "5", "--keep", "1")
        more = args(job, *WIDE, "--steps", "300", "--step-time", "0.03")
        words = (*words, "--verify-resume", "off")
        job.start(*words, args=more, ranks=1)
        failed = job.wait_event("checkpoint_failed", 2)
        assert "No space left" in failed["error"]
        said = f"cannot save step {failed['step']} to {disk}: No space left"
        wait_for(lambda: said in job.stderr, "the line of the save that failed")  # the terminal has a thread
        assert newest(disk) == 5
        job.supervisor.terminate()
        assert job.wait() == 1, job.stderr
        assert newest(disk) == 5
        assert f"No space left on device; it stays in {job.memory}" in job.stderr
        step = len(job.losses())
        job.start(*words, args=more, ranks=1)  # the disk is still full: it goes on all the same
        job.wait_event("checkpoint_failed", failed_so_far := len(job.events("checkpoint_failed")) + 1)
        resumed = job.events("resumed")[-1]
        assert (resumed["source"], resumed["step"]) == ("memory", step)
        resize(disk, "50m")
        job.wait_event("checkpoint_committed", 2)
        assert len(job.events("checkpoint_failed")) >= failed_so_far
        job.supervisor.terminate()
        assert job.wait() == 75, job.stderr
        assert newest(disk) == len(job.losses())
    job.assert_clean()


def inject(saver: psutil.Process, what: str) -> subprocess.Popen[bytes]:
    """Disturb a saver's system calls; returns when it is set up."""
    if STRACE is None:
        pytest.skip("strace is not installed (Debian: strace)")
    call = what.partition(":")[0]
    command = [STRACE, "-f", "-qq", "-o", "/dev/null", "-p", str(saver.pid), "-e", f"trace={call}"]
    tracer = subprocess.Popen([*command, "-e", f"inject={what}"])
    status = Path(f"/proc/{saver.pid}/status")
    wait_for(lambda: "TracerPid:\t0\n" not in status.read_text(), "strace to attach")
    return tracer


@pytest.mark.slow
def test_a_quota_that_is_reached_and_lifted(job: FtJob) -> None:
    options = ("--verify-resume", "off", "--storage-interval", "5")
    job.start(*options, args=args(job, "--steps", "200", "--step-time", "0.03"), ranks=1)
    job.wait_step(1)
    inject(saver_of(job), "mkdir:error=EDQUOT:when=1..4")  # a save makes two
    assert job.wait_event("checkpoint_failed", 2)["error"] == "Disk quota exceeded"
    job.wait_event("checkpoint_committed", len(job.events("checkpoint_committed")) + 1)
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr
    assert newest(job.run_dir / "checkpoints") == len(job.losses())
    assert len(job.events("attempt_started")) == 1
    job.assert_clean()


@pytest.mark.slow
def test_a_file_system_that_becomes_read_only(job: FtJob) -> None:
    """As ext4 does when the device fails."""
    with private_dir() as private:
        make_ext4(private / "image", 64 << 20)
        with ext4(private / "image", job.home / "disk", "errors=remount-ro") as device:
            disk = job.home / "disk"
            more = args(job, "--steps", "400", "--step-time", "0.02")
            job.start("--checkpoint-dir", str(disk), "--storage-interval", "5", args=more, ranks=1)
            job.wait_event("checkpoint_committed", 2)
            Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("1")
            failed = job.wait_event("checkpoint_failed", 2)
            assert "Read-only file system" in failed["error"]
            before = job.wait_step(failed["step"] + 20)
            assert len(job.events("attempt_started")) == 1
            job.supervisor.terminate()
            assert job.wait() == 1, job.stderr
            assert f"it stays in {job.memory}" in job.stderr
            assert max(rank["step"] for rank in before["ranks"]) > newest(disk) > 0


@pytest.mark.slow
def test_slow_storage_drops_nothing_and_holds_up_nobody(job: FtJob) -> None:
    """Every fsync takes a fifth of a second: a save takes many steps; what falls due meanwhile is saved afterwards."""
    more = args(job, "--steps", "250", "--step-time", "0.03")
    job.start("--storage-interval", "5", "--keep", "100", args=more, ranks=1)
    job.wait_step(1)
    inject(saver_of(job), "fsync:delay_enter=200000")
    assert job.wait() == 0, job.stderr
    steps = [event["step"] for event in job.events("checkpoint_committed")]
    assert steps == sorted(set(steps))
    assert steps[-1] == 250
    assert 3 <= len(steps) < 50, "saves were slower than steps, and were not queued"
    assert job.events("checkpoint_failed") == []
    assert newest(job.run_dir / "checkpoints") == 250
    assert [event["why"] for event in job.events("checkpoint_committed")][-1] == "end"
    job.assert_clean()


# --- bandwidth, retention ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_bandwidth_and_retention_as_asked_for(job: FtJob) -> None:
    """3 MB at 500 KB/s: a save takes six seconds, unless the job waits for it."""
    more = args(job, *WIDE, "--steps", "9999", "--step-time", "0.01")
    words = (
        "--verify-resume",
        "off",
        "--storage-bandwidth",
        "500KB/s",
        "--storage-interval",
        "5",
        "--keep",
        "1",
        "--keep-every",
        "5",
    )
    job.start(*words, args=more, ranks=1)
    first = job.wait_event("checkpoint_committed")
    assert first["seconds"] > first["bytes"] / 5e5 * 0.9
    wait_for(lambda: layout.list_incomplete(job.run_dir / "checkpoints"), "the second save to begin")
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr
    last = job.events("checkpoint_committed")[-1]
    assert last["why"] == "stop"
    assert last["seconds"] < last["bytes"] / 5e5 * 0.9, "nobody waits for a bandwidth"
    assert newest(job.run_dir / "checkpoints") == last["step"] == len(job.losses())
    steps = {event["step"] for event in job.events("checkpoint_committed")}
    kept = {step for step, _ in layout.list_iterations(job.run_dir / "checkpoints")}
    assert kept == {step for step in steps if step % 5 == 0} | {last["step"]}
    deleted = job.events("checkpoint_deleted")
    assert {event["step"] for event in deleted} == steps - kept
    for event in deleted:
        assert event["path"] == str(layout.iteration_dir(job.run_dir / "checkpoints", event["step"]))
        assert event["why"] == "retention"
    job.assert_clean()


# --- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_damaged_checkpoints_cost_steps_and_are_said(job: FtJob) -> None:
    """The newest has a flipped bit, the one before a metadata.json that is a bomb: the third is taken."""
    more = ("--storage-interval", "5", "--keep", "99")
    job.start(*more, args=args(job, "--steps", "60", "--step-time", "0.02"), ranks=1)
    assert job.wait() == 0, job.stderr
    checkpoints = job.run_dir / "checkpoints"
    (first, flipped), (second, bomb), (third, _), *_ = layout.list_iterations(checkpoints)
    victim = next(flipped.glob("*-opt-*"))
    data = bytearray(victim.read_bytes())
    data[-3] ^= 4
    victim.write_bytes(data)
    (bomb / layout.METADATA).write_bytes(b"[" * 1_000_000)
    job.start(*more, args=args(job, "--steps", "65"), ranks=1)
    assert job.wait() == 0, job.stderr
    rejected = {event["step"]: event for event in job.events("checkpoint_rejected")}
    assert rejected[first]["why"] == f"{victim.name} does not match its checksum"
    assert "nested too deeply" in rejected[second]["why"]
    assert [rejected[step]["steps_lost"] for step in (first, second)] == [first - third, second - third]
    assert f"checkpoint of step {second} refused" in job.stderr
    assert (job.events("resumed")[-1]["source"], job.events("resumed")[-1]["step"]) == ("storage", third)
    aside = {path.name for path in (checkpoints / "quarantine").iterdir() if path.is_dir()}
    assert aside == {flipped.name, bomb.name}
    job.assert_clean()


# --- whose directory it is --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_second_job_on_the_same_checkpoints_is_refused(job: FtJob, other: FtJob) -> None:
    storage = job.home / "shared" / "checkpoints"
    words = ("--checkpoint-dir", str(storage))
    script = job.home / "sleeper.py"
    script.write_text("import time\nprint('here', flush=True)\ntime.sleep(1000)\n")
    job.start(*words, script=script, args=(), ranks=1)
    job.wait_event("attempt_started")
    other.start(*words, script=script, args=(), ranks=1)
    assert other.wait() == 2
    assert f"cannot start: {storage} is in use by a running job (pid {job.supervisor.pid})" in other.stderr
    assert "give this job another --checkpoint-dir" in other.stderr
    assert len(other.stderr.splitlines()) == 1
    assert not other.run_dir.exists()
    other.assert_clean()
    job.supervisor.kill()  # the lock is free when the saver has followed
    other.start(*words, script=script, args=(), ranks=1)
    other.wait_event("attempt_started")
    other.supervisor.terminate()
    assert other.wait() == 143
    other.assert_clean()
    assert not storage.parent.exists() or not (storage / CHECKPOINT_LOCK).exists()


@pytest.mark.slow
def test_a_saver_that_outlives_its_supervisor_is_waited_for(job: FtJob, other: FtJob) -> None:
    """It holds the directory until its save is finished; the next job goes on from that."""
    storage = job.home / "checkpoints"
    words = ("--checkpoint-dir", str(storage))
    job.start(*words, "--storage-interval", "10", args=args(job, "--steps", "20", "--width", "2500"), ranks=1)
    job.wait_event("attempt_started")
    saver = saver_of(job)
    incomplete = layout.incomplete_dir(storage, 10)
    wait_for(incomplete.exists, "the save to begin")
    saver.suspend()
    assert incomplete.exists(), "it was caught in the middle"
    job.supervisor.kill()
    job.supervisor.wait()
    other.start(*words, args=args(other, "--steps", "20", "--width", "2500"), ranks=1)
    wait_for(lambda: f"waiting for the saver of an earlier supervisor (pid {job.supervisor.pid})" in other.stderr, "it")
    assert incomplete.exists(), "nobody has touched it meanwhile"
    saver.resume()
    assert other.wait() == 0, other.stderr
    resumed = other.events("resumed")[0]
    assert (resumed["source"], resumed["step"]) == ("storage", 10)
    other.assert_clean()


@pytest.mark.slow
def test_a_first_save_that_was_interrupted_means_a_fresh_start(job: FtJob) -> None:
    """Supervisor and saver are killed in the first save ever, and the node's memory is lost."""
    more = args(job, "--steps", "20", "--width", "2500")
    job.start("--storage-interval", "10", args=more, ranks=1)
    job.wait_event("attempt_started")
    saver = saver_of(job)
    checkpoints = job.run_dir / "checkpoints"
    incomplete = layout.incomplete_dir(checkpoints, 10)
    wait_for(incomplete.exists, "the save to begin")
    saver.suspend()
    assert incomplete.exists(), "it was caught in the middle"
    for process in (job.supervisor, saver, *map(psutil.Process, job.pids())):
        process.send_signal(signal.SIGKILL)
    job.dispose()
    (checkpoints / "mine.txt").write_text("mine")
    for path in job.out.iterdir():
        os.unlink(path)
    job.start("--storage-interval", "10", args=more, ranks=1)
    assert job.wait() == 0, job.stderr
    assert "removed what an interrupted save or deletion has left of the checkpoint of step 10" in job.stderr
    assert "no checkpoint was ever finished: starting from the beginning" in job.stderr
    assert [event["step"] for event in job.events("checkpoint_unfinished")] == [10]
    resumed = job.events("resumed")[-1]
    assert (resumed["source"], resumed["step"]) == (None, 0)
    assert len(job.losses()) == 20
    assert newest(checkpoints) == 20
    assert (checkpoints / "mine.txt").exists()
    job.assert_clean()


@pytest.mark.long
def test_without_a_supervisor_a_second_job_is_refused_too(job: FtJob) -> None:
    storage = job.home / "checkpoints"
    custody = Custody(storage, lambda pid: None, print)
    words = [sys.executable, str(TINY), *args(job, "--steps", "3")]
    environ = {**os.environ, "FTLAUNCH_CHECKPOINT_DIR": str(storage), "FT_TEST": job.job_id}
    refused = subprocess.run(words, env=environ, cwd=job.home, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert f"cannot attach: {storage} is in use by a running job (pid {os.getpid()})" in refused.stderr
    custody.leave()
    layout.incomplete_dir(storage, 7).mkdir(parents=True)
    done = subprocess.run(words, env=environ, cwd=job.home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "removed what an interrupted save or deletion has left of the checkpoint of step 7" in done.stderr
    assert newest(storage) == 3
    assert not (storage / CHECKPOINT_LOCK).exists()
