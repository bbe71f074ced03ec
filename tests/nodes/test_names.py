"""Machines that meet by names and addresses as clusters have them: local, late, IPv6.

Each test names the protection that fails it when it is taken out.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import resolvers
from tests.support.machines import Cluster, Machines, made, undisturbed
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NODES, STEPS = 2, 40
ARGS = ("--steps", str(STEPS), "--step-time", "0.1")
SILENT = 30.0  # seconds


@pytest.fixture
def machines() -> Iterator[Machines]:
    with made(NODES) as both:
        yield both


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return undisturbed(tmp_path_factory, nodes=NODES, steps=STEPS)


def assert_ended_well(job: Cluster, alone: Any) -> None:
    assert set(job.wait()) == {0}, job.transcript()
    assert job.result() == alone


def test_the_heads_name_means_another_address_to_each_machine(
    machines: Machines, tmp_path: Path, alone: Any
) -> None:  # fmt: skip
    """An alias that is an address of the loopback on the head's machine, as Debian has it for a host's own name.

    Taken out: the head listens where only its own machine can reach it, and ranks elsewhere are told to meet there.
    """
    resolvers.hosts(machines[0], tmp_path, {"127.0.1.1": "machine0 head"})
    resolvers.hosts(machines[1], tmp_path, {machines[0].address: "head"})
    job = Cluster(machines, tmp_path / "job", NODES, ("--rdzv-endpoint", "head:29400"), *ARGS)
    job.start_all()
    job.wait_step(5)
    machines[0].signal(job.events("job_started")[-1]["pid"], signal.SIGKILL)
    job.wait_event("attempt_adopted")
    assert_ended_well(job, alone)
    assert not job.events("incident")


def test_machines_meet_over_ipv6(machines: Machines, tmp_path: Path, alone: Any) -> None:
    """Taken out, where the agents' probes listen on IPv4 only: a killed rank's machine counts as dead at once."""
    for machine in machines.all:
        address = f"fd77::{machine.number + 1}/64"
        subprocess.run(
            [*machine.enter("-n"), "ip", "address", "add", address, "dev", "eth0", "nodad"], check=True
        )  # fmt: skip
    job = Cluster(machines, tmp_path / "job", NODES, ("--rdzv-endpoint", "[fd77::1]:29400"), *ARGS)
    job.start_all()
    ranks = job.wait_step(5)
    machines[1].signal(ranks[3], signal.SIGKILL)
    job.wait_event("recovered")
    assert_ended_well(job, alone)
    (incident,) = job.events("incident")
    assert (incident["kind"], incident["rank"]) == ("killed", 3), incident


def test_the_resolver_drops_everything_at_first(machines: Machines, tmp_path: Path, alone: Any) -> None:
    """Taken out, where the loop asks the resolver: an agent that is told to end does so only after its time-out."""
    with resolvers.name_server(machines[0], tmp_path) as (ready, noted):
        for machine in machines.all:
            resolvers.asks(machine, tmp_path, machines[0].address)
        resolvers.asks(machines[1], tmp_path, machines[0].address, patience="timeout:30 attempts:5")
        job = Cluster(machines, tmp_path / "job", NODES, ("--rdzv-endpoint", "head.job.example:29400"), *ARGS)
        begun = time.monotonic()
        job.start(1)
        wait_for(noted.read_text, "a question of the resolver")
        job.agents[1].send_signal(signal.SIGTERM)
        job.wait(1)  # which does not wait as long as the resolver does
        resolvers.asks(machines[1], tmp_path, machines[0].address)
        job.start_all()
        wait_for(lambda: "no answer yet of the resolver for head.job.example" in job.said(1), "its sentence")
        wait_for(lambda: time.monotonic() - begun > SILENT, "the time without a name server", 2 * SILENT)
        assert set(noted.read_text().split()) == {"dropped"}
        assert not job.events("job_started")
        ready.touch()
        assert_ended_well(job, alone)
    assert not job.events("incident")
