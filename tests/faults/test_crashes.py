"""A rank ends in every way a process can end; the job goes on from the step it had reached."""

from __future__ import annotations

import pytest
from tests.support.harness import FtJob
from tests.support.leftovers import alive

CRASHES = {
    "sigkill": ("killed", "SIGKILL"),
    "sigsegv": ("signal", "SIGSEGV"),
    "abort": ("signal", "SIGABRT"),
    "exception": ("exception", "ZeroDivisionError: division by zero"),
    "exit17": ("exit", "code 17"),
    "os_exit0": ("left-early", "exit code 0 before its training loop was over"),
}


def test_no_crash_costs_a_step(job: FtJob, calm: FtJob) -> None:
    """One job, which crashes in each way, and goes on after each from the step that it had reached."""
    at = {kind: 4 * number for number, kind in enumerate(CRASHES, 1)}
    options = ("--verify-resume", "off", "--max-restarts", str(len(at)))
    job.start(*options, env={"FAULT": "; ".join(f"{kind} 1 {at[kind]}" for kind in at)})
    assert job.wait() == 0, job.stderr
    assert job.fired() == [f"{kind} 1 {attempt}" for attempt, kind in enumerate(at)]
    resumed = job.events("resumed")[1:]
    for kind, incident, after in zip(at, job.events("incident"), resumed, strict=True):
        assert (incident["kind"], incident["rank"]) == (CRASHES[kind][0], 1)
        assert CRASHES[kind][1] in incident["sentence"]
        assert (after["source"], after["step"], after["steps_lost"]) == ("memory", at[kind], 0), kind
    assert job.losses() == calm.losses()
    assert job.final() == calm.final()
    job.assert_clean()


@pytest.mark.long
def test_a_step_that_the_dead_rank_had_done_is_not_lost(job: FtJob) -> None:
    """The other one was still copying its snapshot. Taken out: without `_lags` it leaves, and nobody has the step."""
    job.start(args=("--out", str(job.out), "--steps", "10", "--step-time", "0.6"), env={"FAULT": "ahead 1 7"})
    assert job.wait() == 0, job.stderr
    assert job.fired() == ["ahead 1 0"]
    resumed = job.events("resumed")[-1]
    assert (resumed["source"], resumed["step"], resumed["steps_lost"]) == ("memory", 7, 0)
    job.assert_clean()


@pytest.mark.long
def test_grandchild_in_its_own_session_dies_with_the_attempt(job: FtJob) -> None:
    job.start(env={"FAULT": "grandchild 1 5"})
    assert job.wait() == 0, job.stderr
    assert job.fired() == ["grandchild 1 0"]
    assert not alive(int((job.out / "grandchild").read_text()))
    job.assert_clean()


@pytest.mark.slow
def test_megabytes_of_output_hold_up_nobody(job: FtJob, calm: FtJob) -> None:
    job.start(env={"FAULT": "chatter 0 3"})
    assert job.wait() == 0, job.stderr
    assert job.fired() == ["chatter 0 0"]
    assert len(job.log(0, 0)) > 2_000_000
    assert job.stdout.count("x" * 1023) == job.log(0, 0).count("x" * 1023)
    assert job.final() == calm.final()
    job.assert_clean()


@pytest.mark.long
def test_budget_is_spent_and_the_last_screen_says_what_failed(job: FtJob) -> None:
    for attempt in range(3):
        (job.home / f"attempt{attempt}").touch()
    script = job.home / "broken.py"
    script.write_text(  # another error each time: the same one before the first step would not be tried again
        "import os, time\ntime.sleep(0.2)\neval('undefined_' + 'abc'[int(os.environ['TORCHELASTIC_RESTART_COUNT'])])\n"
    )
    job.start("--max-restarts", "2", "--backoff-first", "0.1s", script=script, args=())
    assert job.wait() == 1
    assert len(job.events("attempt_started")) == 3
    last = job.stderr.partition("the job has failed")[2]
    for piece in (
        "NameError: name 'undefined_c' is not defined",
        "broken.py",
        "2 of 2 restarts",
        "attempt_2",
    ):
        assert piece in last, job.stderr
    assert "supervisor/ftlaunch" not in job.stderr
    job.assert_clean()


@pytest.mark.long
def test_killed_while_it_copies_a_snapshot(job: FtJob, calm: FtJob) -> None:
    """A torn slot is never taken for a whole one."""
    job.start(env={"FAULT": "midcopy 1 7"})
    assert job.wait() == 0, job.stderr
    assert job.fired() == ["midcopy 1 0"]
    resumed = job.events("resumed")[-1]
    assert (resumed["source"], resumed["step"]) == ("memory", 7), "the newest that both have"
    assert job.losses() == calm.losses()
    assert job.final() == calm.final()
    job.assert_clean()


EARLY = """
import os, signal, time
from pathlib import Path
import torch
import torch.distributed as dist
import ftlaunch_hooks as ft

rank, again = int(os.environ["RANK"]), os.environ["FTLAUNCH_ATTEMPT"] != "0"
model = torch.nn.Linear(4, 4)
job = ft.attach(model=model)
restored = Path("restored")
if again and rank == 1:
    restored.with_name("new").write_text(f"{job.step} {job.restored_from}")
    restored.with_name("new").rename(restored)
while again and not restored.exists():  # rank 0 hosts the store
    time.sleep(0.01)
dist.init_process_group("gloo")
for step in job.steps(10):
    dist.all_reduce(torch.ones(1))
    if step == 5 and rank == 1 and not again:
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
time.sleep(0.2)  # torch 2.13 may abort when the interpreter ends right after the last collective
"""


@pytest.mark.slow
def test_a_rank_restores_while_the_process_group_forms(job: FtJob) -> None:
    """Where the script attaches before it asks for one: nothing in attach() needs it."""
    script = job.home / "early.py"
    script.write_text(EARLY)
    job.start(script=script, args=())
    assert job.wait() == 0, job.stderr
    assert (job.home / "restored").read_text() == "5 memory"
    assert [event["step"] for event in job.events("resumed")] == [0, 5]
    job.assert_clean()
