"""Copies of snapshots over a link that carries little: they are fewer, training goes on, and what is there is whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.machines import Cluster, made, undisturbed
from tests.support.waiting import wait_for

from ftlaunch_contract.pages.page import Page, page_path

NODES, STEPS, STEP_TIME = 2, 120, 0.1
ARGS = ("--steps", str(STEPS), "--step-time", str(STEP_TIME))
KBIT = 1000  # a copy of two ranks' random numbers takes a quarter of a second, and a step less than that

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("tc") is None, reason="tc is not installed (Debian: iproute2)"),
]


def test_a_slow_link_makes_copies_rare_and_a_lost_machine_goes_on_from_them(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Taken out: with an interval that does not heed what a copy takes, each step would be copied."""
    alone = undisturbed(tmp_path_factory, nodes=NODES, steps=STEPS)
    with made(NODES + 1) as machines:
        machines[1].slow(KBIT)
        job = Cluster(machines, tmp_path / "job", NODES, ("--storage-interval", "off"), *ARGS)
        job.start_all()
        job.wait_step(10)
        wait_for(lambda: "this node stands by" in job.said(NODES), "the standby")
        (memory,) = (name for name in job.held(machines[0]) if name.endswith(".node0"))
        page = Page(page_path(machines[0].path("/dev/shm/ftlaunch-0") / memory, 0))
        wait_for(lambda: page.peer_every >= 4, "copies that are rare")
        every = page.peer_every
        page.close()
        job.wait_step(10 + 2 * every + 20)
        machines[1].lose()
        assert set(job.wait(0, 2)) == {0}, job.transcript()
        resumed = job.events("resumed")[-1]
        assert resumed["source"] == "peer", job.transcript()
        assert resumed["steps_lost"] <= 2 * every, job.transcript()
        assert job.result() == alone
