"""Jobs that keep their checkpoints in a bucket, of which a machine, or the keeper in mid-upload, is lost."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
from tests.support.buckets import (
    BUCKET,
    FaultyProxy,
    Refusal,
    Request,
    bucket_server,
    environment,
    needs_server,
)
from tests.support.harness import FtJob
from tests.support.leftovers import carriers
from tests.support.waiting import wait_for

from ftlaunch.checkpoints.stores import index
from ftlaunch.checkpoints.stores.store import open_store
from ftlaunch.checkpoints.stores.stored_catalog import StoreCatalog
from ftlaunch.cli.terminal.progress import progress

pytestmark = [needs_server, pytest.mark.long]


@pytest.mark.slow
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


def test_a_keeper_that_is_killed_in_mid_upload_tears_nothing(
    tmp_path: Path, job: FtJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another keeper stores the step, and clears up what the first one had begun."""
    address = f"s3://{BUCKET}/killed keeper"
    store = ("--checkpoint-dir", address, "--storage-interval", "5", "--keep", "2")
    killed: list[int] = []
    one_request = threading.Lock()
    with bucket_server(tmp_path / "server") as server:
        proxy = FaultyProxy(server)
        env = environment(proxy.endpoint)

        def fault(request: Request) -> Refusal | None:
            if request.kind == "PUT" and "/iteration_" in request.path and "-opt-" in request.path:
                with one_request:
                    if not killed:
                        killed.extend(pid for pid in carriers(job.tag) if is_keeper(pid))
                        for pid in killed:
                            os.kill(pid, signal.SIGKILL)
            return None

        proxy.fault = fault
        try:
            words = ("--out", str(job.out), "--step-time", "0.1")
            job.start(*store, args=(*words, "--steps", "12"), env=env)
            assert job.wait() == 0, job.stderr
            assert killed
            assert [event["status"] for event in job.events("keeper_died")] == [-signal.SIGKILL]
            assert not job.events("checkpoint_not_stored")
            stored = [step for event in job.events("checkpoint_stored") for step in event["steps"]]
            assert 12 in stored, "of several that are stored at once the newest comes first"
            for name, value in env.items():
                monkeypatch.setenv(name, value)
            catalog = StoreCatalog(open_store(address))
            assert max(catalog.index.steps) == 12
            assert all(entry.verified for entry in catalog.verify_steps(None, progress))
            assert set(open_store(address).names(index.OBJECTS)) == catalog.index.objects
            job.assert_clean()
        finally:
            job.dispose()
            proxy.close()


def is_keeper(pid: int) -> bool:
    return b"ftlaunch.checkpoints.stores.keeper" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
