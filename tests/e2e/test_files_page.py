"""docs/reference/files.md describes all that jobs leave, and nothing that no job leaves."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.agents import NodesJob
from tests.support.files_page import left, undescribed, unseen
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

SCRIPT = """
import os, time
import torch
from torch.distributed.elastic.multiprocessing.errors import record
import ftlaunch_hooks as ft

@record
def main():
    model = torch.nn.Linear(4, 1)
    job = ft.attach(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for step in job.steps(20):
        if step == 10 and os.environ["FTLAUNCH_ATTEMPT"] == "0":
            raise ValueError("bad batch")
        if step == 15 and os.environ["FTLAUNCH_ATTEMPT"] == "1":
            time.sleep(1000)

main()
"""
# rows of which these jobs leave no file
ELSEWHERE = {
    "bug.txt": "only a bug leaves it; tests/unit/cli/test_launch.py has one",
    "autopsy/leaving/*": "ranks that do not leave: tests/faults/test_blocked_peers.py",
    "checkpoints/iteration_<step>.incomplete/": "for some milliseconds: tests/faults/test_storage_syscalls.py",
    "checkpoints/skipped.json": "a rollback leaves it: tests/faults/test_numbers.py",
}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodesJob]:
    (tmp_path / "nodes").mkdir()
    job = NodesJob(tmp_path / "nodes")
    yield job
    job.dispose()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_describes_what_jobs_leave(job: FtJob, nodes: NodesJob) -> None:
    """A job that fails, hangs, is detached, begins anew and finds a damaged checkpoint; and a job of two nodes.

    Taken out: a row of the page, and a row more.
    """
    files = [*run(job), *run(job, "--fresh")]
    newest = sorted((job.run_dir / "checkpoints").glob("iteration_*/*.safetensors"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    files += run(job)
    nodes.words = ("--steps", "400", "--step-time", "0.05")  # a busy machine looks at it seconds later
    nodes.begin("--detach")
    assert [agent.wait(60) for agent in nodes.supervisors] == [0, 0], nodes.transcript  # the commands', not the job's
    pid = wait_for(lambda: pid_at(nodes, 10), "step 10 of the job of two nodes")
    files += left(nodes.run_dir)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: nodes.events("job_finished"), "the end of the job of two nodes")
    files += left(nodes.run_dir)
    assert undescribed(files) == []
    assert unseen(files) == set(ELSEWHERE)


def pid_at(job: FtJob, step: int) -> int:
    """The pid of the last rank, once all have made that step; else 0."""
    ranks = (job.status() or {}).get("ranks")
    return int(ranks[-1]["pid"]) if ranks and all(rank["step"] >= step for rank in ranks) else 0


def run(job: FtJob, *options: str) -> list[str]:
    """One run of the job, detached, to its end; the files while it runs, and after it. The page of a job comes last."""
    script = job.home / "train.py"
    script.write_text(SCRIPT)
    page = job.run_dir / "report.html"
    page.unlink(missing_ok=True)
    job.start("--warm", "--detach", "--report-page", "--hang-timeout", "4s", *options, script=script, args=(), ranks=2)
    assert job.wait() == 0, job.stderr
    running = left(job.run_dir)
    wait_for(page.exists, "the end of the job")
    return [*running, *left(job.run_dir)]


def test_a_file_that_is_not_described_is_found(tmp_path: Path) -> None:
    for name in ("events.jsonl", "checkpoints/iteration_0000010/common.json", "logs/attempt_2/rank_7.log", "spare.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "checkpoints/iteration_0000010/unknown").touch()
    assert undescribed(left(tmp_path)) == ["checkpoints/iteration_0000010/unknown", "spare.txt"]
    assert "report.json" in unseen(left(tmp_path))
    assert "events.jsonl" not in unseen(left(tmp_path))
