"""`--memory-interval auto`: the ranks change their interval together, and what is lost is what it says."""

from __future__ import annotations

import pytest
from tests.support.harness import FtJob


@pytest.mark.long
def test_snapshots_that_cost_much_become_rarer_on_all_ranks_at_once(job: FtJob) -> None:
    """Steps of a tiny job take no time against a snapshot: the interval grows, and then a rank dies."""
    job.start(
        "--memory-interval", "auto", "--storage-interval", "off", "--backoff-first", "0.1s",
        args=("--out", str(job.out), "--steps", "300"), env={"FAULT": "sigkill 1 250"},
    )  # fmt: skip
    assert job.wait() == 0, job.stderr
    assert len(job.fired()) == 1
    widest = max(event["interval"] for event in job.events("memory_interval") if event["attempt"] == 0)
    assert widest > 1
    [resumed] = [event for event in job.events("resumed") if event["source"] is not None]
    assert resumed["source"] == "memory"
    assert resumed["steps_lost"] <= widest
    assert sorted(job.losses()) == list(range(300)), "and every step made twice was made alike"
    job.assert_clean()
