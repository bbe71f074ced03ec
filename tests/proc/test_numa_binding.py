"""Ranks of whole jobs have their CPUs before their first line runs, forked or started, and after a restart as well."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.support.harness import FtJob
from tests.support.topologies import write_cpu, write_nodes
from tests.support.waiting import wait_for

TELLS = """\
import os, sys
cpus = " ".join(map(str, sorted(os.sched_getaffinity(0))))
import time
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(f"new_{attempt}_{rank}", "w") as file:
    file.write(f"{os.getpid()} {cpus}")
os.rename(file.name, f"cpus_{attempt}_{rank}")
time.sleep(600 if attempt == "0" else 0)
"""
MODULE = "with_topology"


def on_made_up_machine(home: Path) -> FtJob:
    """Return a job of two ranks on a machine with a NUMA node for each of the first two CPUs that tests may use."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    for node, cpu in enumerate((first, second)):
        write_cpu(home / "machine", cpu, package=node, siblings=str(cpu), cache=str(cpu))
    write_nodes(home / "machine", {0: str(first), 1: str(second)})
    (home / f"{MODULE}.py").write_text(
        "from functools import partial\n"
        "from pathlib import Path\n"
        "from ftlaunch.engine import main as engine\n"
        "from ftlaunch.ranks.cpu_affinity import CpuAffinity\n"
        f"engine.CpuAffinity = partial(CpuAffinity, root=Path({str(home / 'machine')!r}))\n"
        "from ftlaunch.cli.launch import main\n"
        "main()\n"
    )
    (home / "tells.py").write_text(TELLS)
    job = FtJob(home)
    job.module = MODULE
    return job


def read_rank(job: FtJob, rank: int, attempt: int) -> tuple[int, list[int]]:
    """Wait for the word of a rank; return its pid and its CPUs."""
    path = job.home / f"cpus_{attempt}_{rank}"
    wait_for(path.exists, f"rank {rank} of attempt {attempt}")
    pid, *cpus = map(int, path.read_text().split())
    return pid, cpus


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU only")
@pytest.mark.parametrize("how", ["--no-warm", pytest.param("--warm", marks=pytest.mark.long)])
def test_ranks_are_bound_to_the_cpus_of_their_nodes(tmp_path: Path, how: str) -> None:
    """Taken out: for `--no-warm` the binding in `dies_with`, for `--warm` that of `WarmLink`."""
    job = on_made_up_machine(tmp_path)
    try:
        env = {"PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), *sys.path)))}
        options = (how, "--numa-binding", "node", "--backoff-first", "0")
        job.start(*options, script=tmp_path / "tells.py", args=(), env=env)
        each = [[cpu] for cpu in sorted(os.sched_getaffinity(0))[:2]]
        of_first = [read_rank(job, rank, attempt=0) for rank in range(2)]
        assert [cpus for _, cpus in of_first] == each
        os.kill(of_first[0][0], signal.SIGKILL)
        assert [read_rank(job, rank, attempt=1)[1] for rank in range(2)] == each
        assert job.wait() == 0, job.stderr
        forked = {event["state"] for event in job.events("warm_parent")}
        assert ("ready" in forked and "plain" not in forked) == (how == "--warm"), forked
        assert "not bound" not in job.stderr
        job.assert_clean()
    finally:
        job.dispose()


def test_ranks_are_bound_on_this_machine_or_it_is_said_why_not(tmp_path: Path) -> None:
    """Whatever this machine is: its NUMA nodes are described, or not."""
    (tmp_path / "tells.py").write_text(TELLS.replace("600", "0"))
    job = FtJob(tmp_path)
    try:
        job.start("--numa-binding", "node", script=tmp_path / "tells.py", args=())
        assert job.wait() == 0, job.stderr
        nodes = [read_list(path) for path in Path("/sys/devices/system/node").glob("node[0-9]*/cpulist")]
        here = os.sched_getaffinity(0)
        for rank in range(2):
            cpus = set(read_rank(job, rank, attempt=0)[1])
            assert cpus in [node & here for node in nodes] or (cpus == here and "not bound to CPUs" in job.stderr)
        job.assert_clean()
    finally:
        job.dispose()


def read_list(path: Path) -> set[int]:
    """Return the CPUs of a NUMA node."""
    parts = [part.split("-") for part in path.read_text().strip().split(",") if part]
    return {cpu for part in parts for cpu in range(int(part[0]), int(part[-1]) + 1)}
