"""A rank dies; the others, unmodified scripts with SIGTERM handlers, can only be blocked on it, or are at work.

Taken out, and seen to fail: without Clearing.look() in the runner each costs the whole grace.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.support.harness import JOBS, FtJob

BLOCKED = JOBS / "blocked.py"
SOON = 30.0  # seconds; the grace is 60


def start(job: FtJob, *roles: str, warm: str = "--warm", grace: str = "60s") -> None:
    job.start(warm, "--grace", grace, "--backoff-first", "0.1s", script=BLOCKED, args=roles, ranks=3,
              env={"GLOO_SOCKET_IFNAME": "lo"})  # fmt: skip


def happened(job: FtJob) -> list[str]:
    return (job.home / "events").read_text().splitlines()


def end(job: FtJob) -> dict[str, Any]:
    """The job's end, after one restart because of rank 2; what was killed, and why."""
    killed = job.wait_event("ranks_killed", seconds=SOON)
    assert job.wait(SOON) == 0, job.stderr
    [incident] = job.events("incident")
    assert (incident["kind"], incident["rank"]) == ("killed", 2)
    assert happened(job)[0] == "killed 2"
    assert len(job.events("attempt_started")) == 2
    job.assert_clean()
    return killed


@pytest.mark.parametrize("warm", ["--warm", "--no-warm"])
def test_all_are_blocked_one_through_another(job: FtJob, warm: str) -> None:
    """Rank 1 waits for the dead rank in the store, rank 0 for rank 1 in all_reduce."""
    start(job, "reduce", "store", warm=warm)
    killed = end(job)
    assert killed["ranks"] == [0, 1]
    assert re.search(r"without rank 2 all .* blocked: rank 0 in all_reduce .*, rank 1 in new_group", killed["why"])
    assert killed["why"] in job.stderr
    assert happened(job) == ["killed 2"], "no handler ran"


@pytest.mark.parametrize(
    ("roles", "where"), [(("init", "init"), "init_process_group at"), (("backward", "model"), "all_reduce #")]
)
def test_elsewhere(job: FtJob, roles: tuple[str, str], where: str) -> None:
    """In the rendezvous; in the backward pass of DistributedDataParallel."""
    start(job, *roles)
    killed = end(job)
    assert killed["ranks"] == [0, 1]
    assert f"rank 0 in {where}" in killed["why"]


def test_a_rank_that_saves_in_its_handler_is_waited_for(job: FtJob) -> None:
    """Without "all or none" in stranded.waits() its checkpoint is cut off."""
    start(job, "store", "save")
    killed = end(job)
    assert killed["ranks"] == [0]
    assert happened(job) == ["killed 2", "handled 1", "saved 1"]
    assert len((job.home / "checkpoint").read_text().splitlines()) == 15
    assert "it has not left since rank 2" in job.log(0, 1), "it was looked at"


def test_a_rank_in_code_of_its_own_is_waited_for(job: FtJob) -> None:
    start(job, "store", "compute")
    killed = end(job)
    assert killed["ranks"] == [0]
    assert happened(job) == ["killed 2", "handled 1"]
    assert "it has not left since rank 2" in job.log(0, 1), "it was looked at"


def test_a_rank_that_goes_on_until_it_is_blocked(job: FtJob) -> None:
    """Its handler only notes that it is to stop."""
    start(job, "store", "flag")
    killed = end(job)
    assert killed["ranks"] == [0, 1]
    assert happened(job) == ["killed 2", "handled 1"]


def test_after_a_preemption_all_have_the_grace(job: FtJob) -> None:
    """All save then."""
    start(job, "store", "store", "preempted", grace="1s")
    assert job.wait() == 0, job.stderr
    assert [incident["kind"] for incident in job.events("incident")] == ["preempted"]
    assert [(killed["ranks"], killed["why"]) for killed in job.events("ranks_killed")] == [([0, 1], None)]
    assert happened(job) == ["killed 2"]
    assert not (job.run_dir / "autopsy").exists()


IGNORES = """
import os, signal, sys, time
from pathlib import Path
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    signal.signal(signal.SIGTERM, lambda *_: Path("heard").touch())
    Path(f"ready_{os.environ['RANK']}").touch()
    if os.environ["RANK"] == "1":
        while not Path("ready_0").exists():
            time.sleep(0.01)
        Path("events").write_text("killed 1\\n")
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(1000)
"""


def test_a_rank_that_cannot_be_seen_has_its_whole_grace(job: FtJob) -> None:
    """The hooks are not in it: no torch."""
    (job.home / "ignores.py").write_text(IGNORES)
    job.start("--no-warm", "--grace", "1s", script=job.home / "ignores.py", args=())
    assert job.wait() == 0, job.stderr
    [killed] = job.events("ranks_killed")
    assert (killed["ranks"], killed["why"]) == ([0], None)
    assert happened(job) == ["killed 1"]
    assert (job.home / "heard").exists()
    assert not (job.run_dir / "autopsy").exists()
    job.assert_clean()


def test_where_all_leave_at_once_nobody_is_looked_at(job: FtJob) -> None:
    start(job, "reduce", "store", "default")
    assert job.wait() == 0, job.stderr
    assert happened(job) == ["killed 2"]
    assert job.events("ranks_killed") == []
    assert not (job.run_dir / "autopsy").exists()
