"""Whole jobs on the simulated accelerator."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ftlaunch_contract.protocol import EXIT_STOPPED
from tests.support.agents import PATIENT, NodesJob
from tests.support.harness import JOBS, FtJob
from tests.zoo.test_zoo import Shape, disturb, finals, logs, losses, undisturbed

DELAYS = {"kernel_ms": 1, "copy_ms": 2, "fetch_ms": 5}
CHANGED = 4
"""the step in which overlapped.py changes a parameter before the optimizer does"""


@pytest.mark.long
def test_a_snapshot_that_one_rank_has_dropped_is_no_ranks(job: FtJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank is killed just then: all go on from the snapshot before, and the end is the same."""
    shape = Shape(JOBS / "overlapped.py", ranks=2, promise="Exact", words="")
    monkeypatch.setenv("FT_DEVICE", "sim")
    monkeypatch.setenv("ZOO_DELAYS", json.dumps(DELAYS))
    codes, calm = undisturbed(shape, job.home, FT_DEVICE="sim")
    assert codes == [0, 0], "".join(path.read_text() for path in sorted(calm.glob("said_*")))
    broken = disturb(shape, job, f"0:{CHANGED}:memory")
    assert job.supervisor.returncode == 0, job.stderr + logs(job)
    assert f"the snapshot of step {CHANGED} is dropped: `own.weight@1` changed" in logs(job)
    assert not job.events("memory_reduced"), "that a snapshot was dropped says nothing about memory"
    (resumed,) = [event for event in job.events("resumed") if event["attempt"] > 0]
    assert (resumed["source"], resumed["step"]) == ("memory", CHANGED - 1)
    assert (finals(broken), losses(broken)) == (finals(calm), losses(calm))


@pytest.mark.long
def test_a_rank_that_is_blocked_in_a_collective_leaves_by_itself(job: FtJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank hangs in the middle of a step, so the device waits for it.

    Taken out (`_abort_process_group` in parking.py): the device has never done what was queued.
    """
    monkeypatch.setenv("FT_DEVICE", "sim")
    monkeypatch.setenv("ZOO_DELAYS", json.dumps(DELAYS))
    limits = ("--hang-timeout", "5s", "--startup-timeout", "60s", "--verify-resume", "off")
    shape = Shape(JOBS / "device_collective.py", ranks=2, promise="Exact", words="")
    broken = disturb(shape, job, "1:6:hang", limits)
    assert job.supervisor.returncode == 0, job.stderr + logs(job)
    assert list(broken.glob("killed_*")), "the rank hung"
    [incident] = job.events("incident")
    assert (incident["kind"], incident["rank"]) == ("hang", 1), incident
    assert [event["ranks"] for event in job.events("ranks_killed")] == [[1]]
    assert "work under way" not in logs(job)
    [left] = [event for event in job.events("rank_exited") if (event["attempt"], event["rank"]) == (0, 0)]
    assert left["code"] == EXIT_STOPPED


@pytest.mark.long
def test_ranks_that_are_blocked_in_a_collective_leave_by_themselves_on_three_machines(tmp_path: Path) -> None:
    """The rank of the second machine hangs. Taken out: as above."""
    job = NodesJob(tmp_path, nodes=3, ranks=1)
    job.script = JOBS / "device_collective.py"
    (out := tmp_path / "zoo").mkdir()
    job.env = {"FT_DEVICE": "sim", "ZOO_DELAYS": json.dumps(DELAYS), "ZOO_OUT": str(out), "ZOO_KILL": "1:6:hang"}
    job.options = (*PATIENT, "--grace", "1h")
    job.begin("--hang-timeout", "5s", "--startup-timeout", "60s", "--verify-resume", "off")
    assert job.codes() == [0, 0, 0], job.transcript
    assert list(out.glob("killed_*")), "the rank hung"
    [incident] = job.events("incident")
    assert (incident["kind"], incident["rank"]) == ("hang", 1), incident
    assert [event["ranks"] for event in job.events("ranks_killed")] == [[1]]
    written = "".join(path.read_text() for path in (job.run_dir / "logs").rglob("*.log"))
    assert all(f"stacks of rank {rank}" in written for rank in range(3))
    assert "work under way" not in written
    codes = {event["rank"]: event["code"] for event in job.events("rank_exited") if event["attempt"] == 0}
    assert codes == {0: EXIT_STOPPED, 1: -signal.SIGKILL, 2: EXIT_STOPPED}
    job.assert_clean()
    job.dispose()
