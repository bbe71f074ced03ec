"""The catalogue of faults: what is said of each, and what is done about it. Real processes, none of torch.

A row: the fault and where it strikes (tests/jobs/causes.py), the class, what the sentence says, what the rule for it
says is done under `by-cause`. Hangs of torch jobs are in test_hangs.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.causes import CAUSES, fired, incident, run
from tests.support.harness import FtJob
from tests.support.waiting import wait_for


class Row(NamedTuple):
    fault: str  # kind, rank, step; step -1: before the first
    kind: str
    says: str
    action: str = "restart"


CATALOGUE = {
    "the script's own doing, before the first step": [
        Row("name 1 -1", "exception-at-start", "rank 1 failed with NameError: name 'modle' is not defined", "give-up"),
        Row("import 0 -1", "exception-at-start", "rank 0 failed with ModuleNotFoundError", "give-up"),
        Row("syntax 1 -1", "exception-at-start", "rank 1 failed with SyntaxError: invalid syntax", "give-up"),
        Row("arguments 0 -1", "exception-at-start", "rank 0 exited with code 2 before its first step", "give-up"),
        Row("tensor 1 0", "exception-at-start", "failed with RuntimeError: shape '[4]' is invalid", "give-up"),
    ],
    "later": [
        Row("failed 1 5", "exception", "rank 1 failed with Failed: odd after step 5; restarting now"),
        Row("key 0 5", "exception", "rank 0 failed with KeyError: 'missing' after step 5"),
        Row("files 1 5", "exception", "Too many open files"),
        Row("unicode 1 5", "exception", "rank 1 failed with Failed: "),
        Row("keyboard 1 5", "signal", "rank 1 was ended by SIGINT after step 5"),
        Row("keyboard-forgotten 1 5", "signal", "rank 1 was ended by SIGINT after step 5"),
        Row("exit 0 5", "exit", "rank 0 exited with code 17 after step 5"),
        Row("fork 1 5", "exception", "rank 1 failed with Failed: in a child after step 5"),
        Row("late-exit 1 5", "exit", "rank 1 exited with code 3 after step 5"),
        Row("shell-kill 1 5", "killed", "rank 1 exited with code 137 after step 5 (what it ran was killed by SIGKILL"),
        Row("early 0 5", "left-early", "rank 0 left with exit code 0 before its training loop was over"),
        Row("really-early 1 5", "left-early", "rank 1 left with exit code 0 before its training loop was over"),
        Row("rubbish 1 5", "exit", "rank 1 exited with code 17"),
        Row("escape 1 5", "exit", "rank 1 exited with code 17"),
        Row("much 0 5", "exit", "rank 0 exited with code 17"),
    ],
    "storage": [
        Row("chained 1 5", "disk", "rank 1 failed with Failed: cannot save after step 5 (no space left)", "wait"),
        Row("disk 1 5", "disk", "(a file system has failed)", "wait"),
        Row("io 0 5", "disk", "'shard-17.bin' after step 5 (a file system has failed)", "wait"),
        Row("quota 1 5", "disk", "(no space left)", "wait"),
        Row("stale 1 5", "disk", "(a file system has failed)", "wait"),
    ],
    "memory": [
        Row("memory 1 5", "host-memory", "rank 1 failed with MemoryError after step 5 (out of host memory)"),
        Row("enomem 0 5", "host-memory", "(out of host memory)"),
        Row("alloc 1 5", "host-memory", "(out of host memory)"),
        Row("shm 1 5", "host-memory", "(/dev/shm is full)"),
        Row("cuda 1 5", "gpu-memory", "(the GPU's memory is full)"),
        Row("torch-oom 0 5", "gpu-memory", "(the GPU's memory is full)"),
    ],
    "the GPU": [
        Row("ecc 0 5", "gpu", "(a GPU or its link has failed; see the kernel log for Xid)"),
        Row("nvlink 1 5", "gpu", "(a GPU or its link has failed; see the kernel log for Xid)"),
        Row("illegal 0 5", "gpu", "(a GPU or its link has failed; see the kernel log for Xid)"),
        Row("cudnn 1 5", "gpu", "(a GPU has failed; see the kernel log for Xid)"),
    ],
    "the network": [
        Row("nccl 1 5", "comm", "NCCL error: unhandled system error"),
        Row("gloo 0 5", "hang", "rank 0 has ended over a time-out of its own"),
        Row("port 0 -1", "port", "trying another port"),
    ],
    "numbers": [
        Row("nan 0 5", "numerical", "loss is nan at step 5 after step 5 (the training has diverged)", "give-up"),
        Row("float 1 5", "numerical", "FloatingPointError: invalid value", "give-up"),
    ],
    "from outside": [
        Row("sigterm 1 5", "preempted", "restarting now, which does not count: 5 of 5 restarts left"),
        Row("sigkill 1 5", "killed", "rank 1 was killed by SIGKILL after step 5 (by a scheduler or a person"),
        Row("two 0 5", "killed", "was killed by SIGKILL after step 5"),
        Row("worker 1 5", "killed", "DataLoader worker (pid 4711) is killed by signal"),
        Row("preemption 0 5", "preempted", "rank 0 exited with code 1 after step 5 (a scheduler wanted its machine)"),
    ],
    "crashes": [
        Row("segv 1 5", "signal", "rank 1 crashed with SIGSEGV after step 5 (invalid memory access)"),
        Row("abort 0 5", "signal", "rank 0 crashed with SIGABRT after step 5 (an abort"),
        Row("bus 1 5", "signal", "rank 1 crashed with SIGBUS after step 5"),
        Row("fpe 1 5", "signal", "rank 1 crashed with SIGFPE after step 5"),
        Row("ill 0 5", "signal", "rank 0 crashed with SIGILL after step 5"),
        Row("usr1 1 5", "signal", "rank 1 was ended by SIGUSR1 after step 5"),
    ],
    "hangs": [
        Row("sleep 1 5", "hang", "rank 1 is hung in training after step 5"),
        Row("gil 0 5", "hang", "rank 0 is hung in training after step 5"),
        Row("stopped 1 5", "hang", "its process is stopped (SIGSTOP?)"),
        Row("spin 1 5", "hang", "rank 1 is hung in training after step 5"),
        Row("uninterruptible 1 5", "hang", "rank 1 is hung in training after step 5"),
    ],
}


def test_it_is_long_enough() -> None:
    assert len({row.fault.split()[0] for rows in CATALOGUE.values() for row in rows}) >= 40


@pytest.mark.slow
@pytest.mark.parametrize("group", CATALOGUE)
def test_the_verdicts(job: FtJob, group: str) -> None:
    """One job a group: each attempt meets the fault of one row, all are tried again, and the job ends well."""
    rows = CATALOGUE[group]
    hang = ("--hang-timeout", "1s", "--max-hang-restarts", str(len(rows))) if group == "hangs" else ()
    options = ("--max-restarts", str(len(rows)), "--max-same-error", "off", "--backoff-first", "0s", *hang)
    assert run(job, "; ".join(row.fault for row in rows), *options) == 0, job.stderr
    assert [line.split()[0] for line in fired(job)] == [row.fault.split()[0] for row in rows]
    incidents = job.events("incident")
    for row, found in zip(rows, incidents, strict=True):
        assert row.says in found["sentence"]
        open_to_chance = row.fault.startswith(("two", "gloo"))  # of two at once, and of one that waited for the other
        rank = found["rank"] if open_to_chance else int(row.fault.split()[1])
        assert (found["kind"], found["rank"], found["action"]) == (row.kind, rank, row.action), row
    assert len(job.events("attempt_started")) == len(rows) + 1
    assert "\x1b" not in job.stderr + job.stdout, "the terminal is not the job's to command"
    job.assert_clean()


@pytest.mark.slow
def test_all_ranks_at_once(job: FtJob) -> None:
    """One incident, not one a rank."""
    job.start("--backoff-first", "0.1s", script=CAUSES, args=("400",), env={"FAULT": "none 0 -2"}, ranks=4)
    wait_for(lambda: (s := job.status()) and all(rank["step"] > 3 for rank in s["ranks"]), "steps")
    for pid in job.pids():
        with contextlib.suppress(ProcessLookupError):  # it has left since the first was killed
            os.kill(pid, signal.SIGKILL)
    assert job.wait() == 0, job.stderr
    [found] = job.events("incident")
    assert found["kind"] == "killed"
    assert len(job.events("rank_exited")) == 4 + 4
    job.assert_clean()


# --- the kernel's OOM killer, for real ------------------------------------------------------------------------


@pytest.fixture
def small_cgroup() -> object:
    """A memory cgroup (v1) of 200 MiB in ours."""
    ours = next((line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line), "")
    group = Path("/sys/fs/cgroup/memory") / ours.rpartition(":")[2].lstrip("/") / f"ftlaunch-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made ({error.strerror}): run as root, on a kernel with cgroup v1")
    (group / "memory.limit_in_bytes").write_text("200M")
    yield group
    wait_for(lambda: not (group / "cgroup.procs").read_text() or None, "the cgroup is empty")
    group.rmdir()


def test_a_rank_that_the_kernel_kills_for_lack_of_memory(job: FtJob, small_cgroup: Path) -> None:
    """Said with what it had and what there was."""
    job.start(script=CAUSES, args=("12",), env={"FAULT": "eat 1 5"}, preexec_fn=lambda: join(small_cgroup))
    assert job.wait() == 0, job.stderr
    assert (job.home / "fired").read_text().startswith("eat 1 0")
    found = incident(job)
    assert (found["kind"], found["rank"]) == ("host-memory", 1)
    assert (
        "rank 1 was killed by SIGKILL after step 5 (the kernel killed it for lack of host memory: it had "
        in (found["sentence"])
    )
    assert "200.0 MiB are allowed" in found["sentence"]
    job.assert_clean()


def join(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
