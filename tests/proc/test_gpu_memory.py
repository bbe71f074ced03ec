"""Ranks start again once the driver has freed the GPU memory of those before, in whole jobs with an NVML made here."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.faults.test_supervisor import saver_of
from tests.support.agents import NodesJob
from tests.support.harness import JOBS, FtJob
from tests.support.nvml import MODULE, FakeNvml
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (Debian: gcc)")
BEATS = JOBS / "beats.py"
SLEEPS = """\
import os, time
with open(f"pid_{os.environ['TORCHELASTIC_RESTART_COUNT']}_{os.environ['RANK']}", "w") as file:
    file.write(str(os.getpid()))
time.sleep(600)
"""
LEAVES = "import subprocess\nchild = subprocess.Popen(['sleep', '600'], start_new_session=True)\n" + SLEEPS
LOOKS = 10  # answers of two GPUs: a wait has looked several times


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "nvml")


@pytest.fixture
def job(tmp_path: Path, nvml: FakeNvml) -> Iterator[FtJob]:
    """Two ranks without torch that beat, on a machine with two GPUs; a restart follows at once."""
    job = FtJob(tmp_path)
    job.module = MODULE
    job.start("--backoff-first", "0", script=BEATS, args=("1000000", "0.01"), env=nvml.env)
    yield job
    job.dispose()


@pytest.fixture
def nodes(tmp_path: Path, nvml: FakeNvml) -> Iterator[NodesJob]:
    """Two nodes, which have the GPUs in common, with two ranks each that only sleep."""
    (tmp_path / "sleeps.py").write_text(SLEEPS)
    job = NodesJob(tmp_path)
    job.module = MODULE
    job.script = tmp_path / "sleeps.py"
    job.env = nvml.env
    yield job
    job.dispose()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def read_pid(job: FtJob, rank: int, attempt: int) -> int:
    """Wait until a rank of SLEEPS runs in an attempt; return its pid."""
    path = job.home / f"pid_{attempt}_{rank}"
    return int(wait_for(lambda: path.exists() and path.read_text(), f"rank {rank} of attempt {attempt}") or 0)


def stop(job: FtJob) -> None:
    for supervisor in job.supervisors:
        supervisor.send_signal(signal.SIGTERM)
    for supervisor in job.supervisors:
        supervisor.wait(60)


@pytest.mark.long
def test_an_attempt_starts_once_the_memory_of_the_last_one_is_free(job: FtJob, nvml: FakeNvml) -> None:
    """Taken out (`may_start` of the engine): the second attempt starts while the memory is held."""
    job.wait_step(3)
    stranger = os.getpid()  # holds memory all the time, and is not waited for
    first, second = job.pids()
    nvml.list((0, first, 300), (1, second, 400), (1, stranger, 500))
    kill(second)
    job.wait_event("rank_exited", 2)
    asked = nvml.answers
    wait_for(lambda: nvml.answers > asked + LOOKS, "a wait for the memory")
    assert len(job.events("attempt_started")) == 1
    free_at = nvml.answers
    nvml.list((1, stranger, 500))
    job.wait_event("attempt_started", 2)
    assert nvml.answers > free_at
    assert not job.events("gpu_memory_held")
    stop(job)
    job.assert_clean()


@pytest.mark.long
def test_memory_of_a_process_that_a_rank_has_left_behind_is_waited_for(tmp_path: Path, nvml: FakeNvml) -> None:
    """Taken out (`_left_behind`): the second attempt starts while the memory of the killed process is held."""
    script = tmp_path / "leaves.py"
    script.write_text(LEAVES)
    job = FtJob(tmp_path)
    try:
        job.module = MODULE
        job.start("--backoff-first", "0", script=script, args=(), env=nvml.env, ranks=1)
        rank = read_pid(job, 0, attempt=0)
        (child,) = psutil.Process(rank).children()
        nvml.list((0, child.pid, 300))
        kill(rank)
        wait_for(lambda: not child.is_running(), "the end of the process that the rank has started")
        asked = nvml.answers
        wait_for(lambda: nvml.answers > asked + LOOKS, "a wait for the memory")
        assert len(job.events("attempt_started")) == 1
        nvml.list()
        read_pid(job, 0, attempt=1)
        stop(job)
        job.assert_clean()
    finally:
        job.dispose()


def test_a_rank_that_is_restarted_alone_starts_once_the_memory_of_its_last_process_is_free(
    tmp_path: Path, nvml: FakeNvml
) -> None:
    """Taken out (`_await_memory` of the ranks): the rank starts again while the memory is held."""
    (tmp_path / "sleeps.py").write_text(SLEEPS)
    job = FtJob(tmp_path)
    try:
        job.module = MODULE
        options = ("--restart-scope", "rank", "--backoff-first", "0")
        job.start(*options, script=tmp_path / "sleeps.py", args=(), env=nvml.env, ranks=2)
        first, other = (read_pid(job, rank, attempt=0) for rank in range(2))
        nvml.list((0, first, 300), (1, other, 400))
        kill(first)
        job.wait_event("rank_exited", 1)
        asked = nvml.answers
        wait_for(lambda: nvml.answers > asked + LOOKS, "a wait for the memory")
        assert not job.events("rank_restarted")
        nvml.list((1, other, 400))
        assert read_pid(job, 0, attempt=1) != first
        assert len(job.events("attempt_started")) == 1
        stop(job)
        job.assert_clean()
    finally:
        job.dispose()


def test_a_job_whose_supervisor_was_killed_starts_once_the_memory_of_its_ranks_is_free(
    job: FtJob, nvml: FakeNvml
) -> None:
    """Taken out (`gpu_memory` of `may_begin`): the second supervisor starts its ranks while the memory is held."""
    job.wait_step(3)
    first, second = job.pids()
    nvml.list((0, first, 300), (1, second, 400))
    job.supervisor.kill()
    job.supervisor.wait(60)
    started = len(job.events("attempt_started"))
    job.start("--backoff-first", "0", script=BEATS, args=("1000000", "0.01"), env=nvml.env)
    asked = nvml.answers
    wait_for(lambda: nvml.answers > asked + LOOKS, "a wait for the memory")
    assert len(job.events("job_started")) == 2
    assert len(job.events("attempt_started")) == started
    nvml.list()
    job.wait_event("attempt_started", started + 1)
    stop(job)
    job.assert_clean()


@pytest.mark.long
def test_memory_of_what_a_killed_supervisor_has_left_running_is_waited_for(tmp_path: Path, nvml: FakeNvml) -> None:
    """Taken out (`leftovers` of `earlier_pids`): the ranks start while the memory of the killed process is held."""
    script = tmp_path / "leaves.py"
    script.write_text(LEAVES)
    job = FtJob(tmp_path)
    try:
        job.module = MODULE
        job.start(script=script, args=(), env=nvml.env, ranks=1)
        (child,) = psutil.Process(read_pid(job, 0, attempt=0)).children()
        nvml.list((0, child.pid, 300))
        saver = saver_of(job)
        saver.suspend()  # it would end the process, and nobody would know of it
        job.supervisor.kill()
        job.supervisor.wait(60)
        saver.kill()
        assert child.is_running(), "the process outlives the supervisor"
        job.start(script=script, args=(), env=nvml.env, ranks=1)
        wait_for(lambda: not child.is_running(), "the end of the process that the rank has started")
        asked = nvml.answers
        wait_for(lambda: nvml.answers > asked + LOOKS, "a wait for the memory")
        assert len(job.events("attempt_started")) == 1
        nvml.list()
        job.wait_event("attempt_started", 2)
        stop(job)
        job.assert_clean()
    finally:
        job.dispose()


@pytest.mark.slow
def test_an_attempt_starts_nonetheless_where_memory_is_never_freed(job: FtJob, nvml: FakeNvml) -> None:
    """Taken out (the bound): the job waits for ever. Then the driver is silent, which blocks nothing either."""
    job.wait_step(3)
    pids = job.pids()
    nvml.list((1, pids[1], 400))
    kill(pids[1])
    held = job.wait_event("gpu_memory_held")
    (holder,) = held["holders"]
    assert holder == {"gpu": 1, "pid": pids[1], "bytes": 400 << 20, "command": None, "user": None, "rank": 1}
    assert held["attempt"] == 0
    assert held["seconds"] >= 10
    assert (
        f"the GPU memory of attempt 0 is not free 10 s after its last process (GPU 1: 400 MiB, pid {pids[1]}, rank 1,"
        " which has ended): the next attempt begins nonetheless, and may run out of memory" in job.stderr
    )
    job.wait_event("attempt_started", 2)
    job.wait_step(3)
    nvml.fall_silent()
    kill(job.pids()[0])
    assert job.wait_event("gpu_memory_held", 2)["holders"] == []
    assert "whether the GPU memory of attempt 1 is free" in job.stderr
    job.wait_event("attempt_started", 3)
    job.wait_step(3)
    stop(job)
    nvml.answer_again()
    job.assert_clean()


@pytest.mark.long
def test_a_node_whose_agent_was_killed_is_ready_once_the_memory_of_its_ranks_is_free(
    nodes: NodesJob, nvml: FakeNvml
) -> None:
    """Taken out (`is_memory_free` of the agent's `may_begin`): the attempt starts while the memory is held."""
    nodes.script = nodes.home / "begins.py"
    nodes.script.write_text(f"from ftlaunch_hooks.process.bootstrap import own_page\npage = own_page()\n{SLEEPS}")
    agents = nodes.begin("--backoff-first", "0")
    pids = [read_pid(nodes, rank, attempt=0) for rank in range(4)]
    nvml.list((0, pids[3], 300))
    agents[1].kill()
    agents[1].wait(60)
    nodes.wait_event("node_left")
    nodes.agent("--node-rank", "1", "--backoff-first", "0")
    asked = nvml.answers
    wait_for(lambda: nvml.answers > asked + LOOKS, "a wait for the memory")
    assert len(nodes.events("attempt_started")) == 1
    nvml.list()
    nodes.wait_event("attempt_started", 2)
    for supervisor in (agents[0], nodes.supervisors[-1]):
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait(60)
    nodes.assert_clean()


@pytest.mark.long
def test_each_node_waits_for_the_memory_of_its_own_ranks(nodes: NodesJob, nvml: FakeNvml) -> None:
    """Taken out (`awaits_memory` of the head's nodes): the second attempt starts while one node's memory is held."""
    nodes.begin("--backoff-first", "0")
    pids = [read_pid(nodes, rank, attempt=0) for rank in range(4)]
    nvml.list((0, pids[3], 300))
    kill(pids[0])
    nodes.wait_event("rank_exited", 4)
    asked = nvml.answers
    wait_for(lambda: nvml.answers > asked + LOOKS, "a wait for the memory")
    assert len(nodes.events("attempt_started")) == 1
    nvml.list()
    for rank in range(4):
        read_pid(nodes, rank, attempt=1)
    stop(nodes)
    nodes.assert_clean()
