"""The process from which an agent has heads started, and by which it looks for them, is killed; then the head is."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.machines import Cluster, Machine, made, undisturbed
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

NODES, STEPS = 2, 90
ARGS = ("--steps", str(STEPS), "--step-time", "0.2")
TIMEOUT = "--node-timeout", "6s"  # no node is to fall silent on a busy machine


@pytest.fixture
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return undisturbed(tmp_path_factory, nodes=NODES, steps=STEPS)


def command(pid: int) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).cmdline()
    return []


def processes_like(machine: Machine, agent: int) -> set[int]:
    """Those on a machine that were forked from its agent: the starter, and the head."""
    return {pid for pid in machine.processes().values() if pid != agent and command(pid) == command(agent)}


@pytest.mark.slow
@pytest.mark.parametrize("has_descriptors", [True, False])
def test_the_node_beside_a_lost_head_finds_the_next_one(tmp_path: Path, alone: Any, has_descriptors: bool) -> None:
    """Taken out: without `replace_by_thread` nobody reads the sign of the new head, and the node leaves after 30 s.

    Where it has no descriptor left at that moment, it tries again. Taken out (`bulkheads`): the agent ends.
    """
    with made(NODES) as machines:
        job = Cluster(machines, tmp_path / "job", NODES, TIMEOUT, *ARGS)
        job.start_all()
        ranks = job.wait_step(5)
        here = machines[0]
        head = here.processes()[job.events("job_started")[-1]["pid"]]
        [starter] = processes_like(here, job.agents[0].pid) - {head}  # type: ignore[attr-defined]
        agent = job.agents[0].pid
        limits = resource.prlimit(agent, resource.RLIMIT_NOFILE)
        if not has_descriptors:
            resource.prlimit(agent, resource.RLIMIT_NOFILE, (3, limits[1]))
        os.kill(starter, signal.SIGKILL)
        if not has_descriptors:
            short = "cannot look for another head: OSError: [Errno 24] Too many open files"
            wait_for(lambda: short in job.said(0), "what is said of the descriptors")
            resource.prlimit(agent, resource.RLIMIT_NOFILE, limits)
        wait_for(lambda: "the process that starts heads on this node was killed" in job.said(0), "what is said of it")
        os.kill(head, signal.SIGKILL)
        job.wait_event("attempt_adopted")
        assert job.wait_step(6) == ranks
        assert set(job.wait()) == {0}, job.transcript()
        assert len(job.events("attempt_started")) == 1
        assert job.result() == alone
        wait_for(lambda: not any(map(job.held, machines.all)), "the end of the head, which comes after its agents'")
