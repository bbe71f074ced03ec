"""A job whose machine is lost goes on from a bucket, bit for bit."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from tests.support.buckets import BUCKET, FaultyProxy, bucket_server, environment, needs_server
from tests.support.harness import FtJob
from tests.support.leftovers import carriers
from tests.support.waiting import wait_for

pytestmark = [needs_server, pytest.mark.long]


def test_an_empty_machine_goes_on_where_the_lost_one_had_stored(tmp_path: Path, calm: FtJob) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first, second = FtJob(tmp_path / "first"), FtJob(tmp_path / "second")
    second.job_id, second.memory, second.tag = first.job_id, first.memory, first.tag
    store = ("--checkpoint-dir", f"s3://{BUCKET}/a job", "--storage-interval", "5")
    with bucket_server(tmp_path / "server") as server:
        proxy = FaultyProxy(server)
        env = environment(proxy.endpoint)
        try:
            words = ("--out", str(first.out), "--steps", "30", "--step-time", "0.2")
            first.start(*store, args=words, env=env)
            first.wait_event("checkpoint_stored", count=2)
            ranks = first.pids()
            os.kill(first.supervisor.pid, signal.SIGKILL)
            for pid in ranks:
                os.kill(pid, signal.SIGKILL)
            first.supervisor.wait()
            wait_for(lambda: not carriers(first.tag), "the end of all processes of the machine")
            shutil.rmtree(first.memory)
            shutil.rmtree(first.run_dir)
            second.start(*store, args=("--out", str(second.out), "--steps", "30"), env=env)
            assert second.wait() == 0, second.stderr
            (opened,) = second.events("store_opened")
            assert opened["newest"] >= 10
            assert opened["brought"] == [opened["newest"]]
            assert second.final() == calm.final()
            assert second.events("checkpoint_stored")[-1]["steps"] == [30]
            second.assert_clean()
            print(dict(proxy.kinds), [len(job.events("checkpoint_stored")) for job in (second,)])
        finally:
            first.dispose()
            second.dispose()
            proxy.close()
