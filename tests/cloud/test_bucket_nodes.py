"""A job of two nodes that share nothing but a bucket: both machines are lost, and two others go on, bit for bit."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path

import pytest
from tests.support.agents import NodesJob
from tests.support.buckets import BUCKET, FaultyProxy, bucket_server, environment, needs_server
from tests.support.harness import FtJob
from tests.support.leftovers import carriers

from ftlaunch_contract.protocol import memory_root

pytestmark = [needs_server, pytest.mark.long]


def start(job: NodesJob, machine: str) -> None:
    """Start both agents on machines with empty disks."""
    job.run_dir = job.home / f"{machine}_0"
    for rank in range(2):
        store = ("--checkpoint-dir", f"s3://{BUCKET}/a job", "--take-over-store", "--storage-interval", "5")
        places = ("--node-rank", str(rank), "--run-dir", str(job.home / f"{machine}_{rank}"))
        job.agent(*places, *store, "--peer-interval", "0")
        job.wait_event("job_started")


def test_two_empty_machines_go_on_where_the_lost_ones_had_stored(tmp_path: Path, calm: FtJob) -> None:
    job = NodesJob(tmp_path, ranks=1)
    with bucket_server(tmp_path / "server") as server:
        proxy = FaultyProxy(server)
        job.env |= environment(proxy.endpoint) | {"FTLAUNCH_TOKEN": "a token that is long enough"}
        try:
            job.words = ("--steps", "30", "--step-time", "0.5")
            start(job, "first")
            job.wait_event("checkpoint_stored", count=2)
            while pids := carriers(job.tag):
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                for agent in job.supervisors:
                    agent.wait()
            for name in job.memories():
                shutil.rmtree(memory_root(os.getuid()) / (job.job_id + name))
            for rank in range(2):
                shutil.rmtree(tmp_path / f"first_{rank}")
            job.words = ("--steps", "30")
            start(job, "second")
            assert job.codes()[2:] == [0, 0], job.transcript
            (opened,) = job.events("store_opened")
            assert opened["newest"] >= 10
            assert opened["brought"] == [opened["newest"]]
            assert [(one["source"], one["step"]) for one in job.events("resumed")] == [("storage", opened["newest"])]
            assert job.final() == calm.final()
            assert job.events("checkpoint_stored")[-1]["steps"] == [30]
            job.assert_clean()
        finally:
            job.dispose()
            proxy.close()
