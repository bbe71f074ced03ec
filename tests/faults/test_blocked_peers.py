"""A rank dies; the others, unmodified scripts with SIGTERM handlers, can only be blocked on it, or are at work.

Taken out, and seen to fail: without GraceCut.poll() in Watch each costs the whole grace.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.support.harness import JOBS, FtJob

BLOCKED = JOBS / "blocked.py"


def happened(job: FtJob, attempt: int = 0) -> list[str]:
    return (job.home / f"events_{attempt}").read_text().splitlines()


def run(job: FtJob, *lives: str, warm: str = "--warm", grace: str = "1h") -> list[dict[str, Any]]:
    """What was killed in each attempt of a job whose ranks are in these roles, and why; it ends well.

    grace: longer than anybody waits for the end of the job, unless a test says otherwise.
    """
    options = ("--grace", grace, "--backoff-first", "0.1s", "--backoff-max", "0.2s", "--max-restarts", str(len(lives)))
    job.start(warm, *options, script=BLOCKED, args=("; ".join(lives),), ranks=3, env={"GLOO_SOCKET_IFNAME": "lo"})
    assert job.wait() == 0, job.stderr
    assert [happened(job, attempt)[0] for attempt in range(len(lives))] == ["killed 2"] * len(lives)
    assert [incident["rank"] for incident in job.events("incident")] == [2] * len(lives)
    assert len(job.events("attempt_started")) == len(lives) + 1
    job.assert_clean()
    return job.events("ranks_killed")


@pytest.mark.parametrize("warm", ["--warm", "--no-warm"])
@pytest.mark.slow  # on a busy machine rank 1 may not have come so far as to be blocked
def test_all_are_blocked(job: FtJob, warm: str) -> None:
    """One through another: rank 1 waits for the dead rank in the store, rank 0 for rank 1 in all_reduce.

    Then in the rendezvous; in the backward pass of DistributedDataParallel; where a handler only notes that it is to
    stop, and the rank goes on until it is blocked.
    """
    chain, rendezvous, backward, flag = run(job, "reduce store", "init init", "backward model", "store flag", warm=warm)
    assert [killed["ranks"] for killed in (chain, backward, flag)] == [[0, 1]] * 3
    assert 0 in rendezvous["ranks"], "rank 1 may not have come so far, and leaves by itself"
    assert re.search(r"without rank 2 all .* blocked: rank 0 in all_reduce .*, rank 1 in new_group", chain["why"])
    assert "rank 0 in init_process_group at" in rendezvous["why"]
    assert "rank 0 in all_reduce #" in backward["why"]
    assert all(killed["why"] in job.stderr for killed in (chain, rendezvous, backward))
    assert [happened(job, attempt) for attempt in (0, 2)] == [["killed 2"]] * 2, "no handler ran"
    assert happened(job, 1) == ["killed 2", *([] if 1 in rendezvous["ranks"] else ["handled 1"])]
    assert happened(job, 3) == ["killed 2", "handled 1"]


@pytest.mark.slow
def test_a_rank_that_is_at_work_is_waited_for(job: FtJob) -> None:
    """It saves in its handler, or is in code of its own: without "all or none" in stranded.waits() it is cut off."""
    saves, computes = run(job, "store save", "store compute")
    assert [saves["ranks"], computes["ranks"]] == [[0], [0]]
    assert happened(job, 0) == ["killed 2", "handled 1", "saved 1"]
    assert len((job.home / "checkpoint").read_text().splitlines()) == 15
    assert happened(job, 1) == ["killed 2", "handled 1"]
    for attempt in (0, 1):
        assert "it has not left since rank 2" in job.log(attempt, 1), "it was looked at"


@pytest.mark.slow  # likewise
def test_after_a_preemption_all_have_the_grace(job: FtJob) -> None:
    """All save then. Where all leave at once nobody is looked at."""
    [killed] = run(job, "store store preempted", "reduce store default", grace="1s")
    assert [incident["kind"] for incident in job.events("incident")] == ["preempted", "killed"]
    assert (killed["attempt"], killed["ranks"], killed["why"]) == (0, [0, 1], None)
    assert happened(job, 0) in (["killed 2"], ["killed 2", "handled 1"]), "rank 1 may not have come so far as to wait"
    assert happened(job, 1) == ["killed 2"]
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
        Path("events_0").write_text("killed 1\\n")
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


HANGS = """
import os, signal, sys, time
from pathlib import Path
import quick
import torch
import torch.distributed as dist

RANK, FIRST = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
told = []


def note(signum, frame):
    told.append(signum)
    Path(f"heard_{RANK}").touch()
    if sys.argv[1] == "saves" and RANK == 1:
        time.sleep(3)
        Path("saved").touch()
        os._exit(0)


signal.signal(signal.SIGTERM, note)
dist.init_process_group("gloo")
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
for step in range(6):
    if FIRST and step == 3 and RANK == 1:
        Path("events_0").write_text("slept 1\\n")
        time.sleep(1000)
    dist.all_reduce(torch.ones(1))
    optimizer.step()
    time.sleep(0.1)
dist.destroy_process_group()
time.sleep(0.2)
"""


@pytest.mark.long
@pytest.mark.parametrize("how", ["flag", pytest.param("saves", marks=pytest.mark.slow)])
def test_after_a_hang(job: FtJob, how: str) -> None:
    """Handlers that note the signal, as Lightning's: the rank that sleeps goes on sleeping, the other never hears it.

    Taken out: without `hang` in GraceCut.begin() it takes the grace of an hour. A handler that saves has its time.
    """
    (job.home / "hangs.py").write_text(HANGS)
    options = ("--warm", "--preload", "quick", "--grace", "1h", "--hang-timeout", "2s", "--startup-timeout", "60s")
    env = {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(JOBS)}
    job.start(*options, script=job.home / "hangs.py", args=(how,), env=env)
    assert job.wait() == 0, job.stderr
    assert happened(job) == ["slept 1"]
    assert (job.home / "heard_1").exists()
    (incident,) = job.events("incident")
    assert (incident["kind"], incident["rank"]) == ("hang", 1)
    killed = job.events("ranks_killed")
    if how == "saves":  # rank 0 hears the signal when its connection to rank 1 is closed
        assert (job.home / "saved").exists()
        assert killed == []
    else:
        assert not (job.home / "heard_0").exists(), "its main thread is in a collective"
        assert [event["ranks"] for event in killed] == [[0, 1]]
        assert "SIGTERM has moved nothing in rank 1" in killed[0]["why"]
    job.assert_clean()
