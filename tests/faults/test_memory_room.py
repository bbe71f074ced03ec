"""Jobs in a /dev/shm as small as a container's: they run, say what they cannot do, and lose what they said."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.disks import in_small_shm, needs_root
from tests.support.harness import TINY, FtJob
from tests.support.waiting import wait_for

from ftlaunch_contract.checkpoint import layout, verify

pytestmark = needs_root

WIDE = ("--width", "700")  # one snapshot of both ranks: 2 MiB at the first step, 6 MiB once AdamW has its state


@pytest.mark.parametrize(
    ("shm", "slots", "interval", "says"),
    [
        pytest.param(
            "16m",
            2,
            "6",
            r"memory holds 2 snapshots instead of 3 \(a snapshot of all ranks takes 6 MiB",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "16m",
            2,
            "off",
            r"memory holds 2 snapshots instead of 3 \(a snapshot of all ranks takes 6 MiB",
            marks=pytest.mark.slow,
        ),
        pytest.param("9m", 1, "6", r"memory holds one snapshot, overwritten every 10 steps", marks=pytest.mark.slow),
        pytest.param("9m", 1, "off", r"memory holds one snapshot, overwritten every 10 steps", marks=pytest.mark.long),
        pytest.param(
            "4m",
            0,
            "6",
            r"no room for snapshots in memory .* the state is laid on storage at checkpoints only",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_rank_dies_where_memory_is_short(job: FtJob, shm: str, slots: int, interval: str, says: str) -> None:
    options = ("--storage-interval", interval, "--backoff-first", "0.1s")
    args = ("--out", str(job.out), *WIDE, "--steps", "30", "--step-time", "0.02")
    job.start(*options, args=args, env={"FAULT": "sigkill 1 25"}, preexec_fn=in_small_shm(shm))
    assert job.wait() == 0, job.stderr
    assert len(job.fired()) == 1
    reduced = job.events("memory_reduced")
    assert reduced[-1]["slots"] == slots
    assert re.search(says, job.stderr), job.stderr
    assert re.search(says, job.log(0, 0)), "in the rank's log too"
    [resumed] = [event for event in job.events("resumed") if event["source"] is not None]
    if interval == "off":
        assert resumed["steps_lost"] <= {2: 1, 1: 10}[slots]
    elif slots:
        assert resumed["step"] > 0, "what the saver reads is not overwritten, and a copy may have been under way"
    else:  # a machine under load takes its time to save
        committed = [event["step"] for event in job.events("checkpoint_committed") if event["mono"] < resumed["mono"]]
        assert max(committed) <= resumed["step"] <= 25, "the newest committed one, or what is laid down for the next"
    assert sorted(job.losses()) == list(range(30)), "and every step made twice was made alike"
    assert not job.events("checkpoint_failed")
    assert not list((job.run_dir / "checkpoints").glob(".staged-*")), "what was staged is gone"


@pytest.mark.long
def test_a_stop_where_there_is_no_room_at_all(job: FtJob) -> None:
    args = ("--out", str(job.out), *WIDE, "--steps", "400", "--step-time", "0.02")
    job.start("--verify-resume", "off", "--storage-interval", "off", args=args, preexec_fn=in_small_shm("4m"))
    job.wait_event("memory_reduced")  # its status cannot be asked for: /dev/shm is its own
    wait_for((job.out / "loss_0.csv").exists, "the first step")
    wait_for(lambda: len(job.losses()) > 12, "some steps")
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.stderr
    step = job.events("job_stopped")[-1]["step"]
    assert len(job.losses()) == step, "saved at the very boundary"
    assert not list((job.run_dir / "checkpoints").glob(".staged-*"))


@pytest.mark.slow
def test_without_a_supervisor(job: FtJob) -> None:
    """A process under plain python that finds too little room in /dev/shm trains on, and resumes from storage."""
    checkpoints = job.home / "checkpoints"
    name, _, value = job.tag.partition("=")
    env = {**os.environ, name: value, "FTLAUNCH_CHECKPOINT_DIR": str(checkpoints), "FTLAUNCH_VERIFY_RESUME": "off"}
    command = [sys.executable, str(TINY), "--out", str(job.out), *WIDE, "--steps", "40", "--step-time", "0.03"]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=env,
            cwd=job.home,
            text=True,
            stderr=subprocess.PIPE,
            preexec_fn=in_small_shm("4m"),  # noqa: PLW1509
        )

    first = start()
    path = Path(job.out / "loss_0.csv")
    wait_for(lambda: path.exists() and len(path.read_text().splitlines()) > 14, "some steps")
    first.terminate()
    said = first.communicate(timeout=60)[1]
    assert first.returncode == 75, said
    assert "no room for snapshots in memory" in said
    [(step, directory)] = layout.list_iterations(checkpoints)
    verify.verify(directory)
    assert len(job.losses()) == step
    second = start()
    assert second.wait(60) == 0, second.communicate()[1]
    assert sorted(job.losses()) == list(range(40))
    assert not list(checkpoints.glob(".staged-*"))
