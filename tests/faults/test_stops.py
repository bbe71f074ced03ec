"""SIGTERM in every situation: one clean checkpoint on an agreed step, exit 75, and the run goes on from there."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

SLOW = ("--steps", "60", "--step-time", "0.03")


def args(job: FtJob, *more: str) -> tuple[str, ...]:
    return ("--out", str(job.out), *more)


def finish(job: FtJob, more: tuple[str, ...] = ()) -> None:
    """Start again; the run must go on from the step it was stopped at, without a loss, and leave nothing."""
    stopped = job.events("job_stopped")[-1]["step"]
    job.start(args=args(job, *more))
    assert job.wait() == 0, job.stderr
    resumed = job.events("resumed")[-1]
    assert (resumed["source"], resumed["step"]) == ("storage", stopped)
    losses = job.losses()
    assert sorted(losses) == list(range(len(losses)))
    job.assert_clean()


def stopped_once(job: FtJob) -> int:
    """The supervisor ended with 75 and committed exactly one checkpoint for the stop."""
    assert job.wait() == 75, job.stderr
    commits = [e for e in job.events("checkpoint_committed") if e["why"] == "stop"]
    assert len(commits) == 1, commits
    job.assert_clean()
    assert not list((job.run_dir / "checkpoints").glob("*.incomplete"))
    return int(commits[0]["step"])


def test_sigterm_to_the_supervisor(job: FtJob) -> None:
    job.start("--verify-resume", "off", args=args(job, *SLOW))
    job.wait_step(8)
    job.supervisor.terminate()
    step = stopped_once(job)
    assert len(job.losses()) == step, "not a step more than is saved was made"
    assert [e["code"] for e in job.events("rank_exited")] == [75, 75]
    finish(job, SLOW)


@pytest.mark.long
def test_sigterm_to_a_rank(job: FtJob) -> None:
    job.start("--verify-resume", "off", args=args(job, *SLOW))
    job.wait_step(8)
    os.kill(job.pids()[1], signal.SIGTERM)
    step = stopped_once(job)
    assert job.events("stop_requested")[0]["by"] == "SIGTERM to rank 1"
    assert len(job.losses()) == step


@pytest.mark.long
def test_sigterm_to_everybody_twice(job: FtJob) -> None:
    job.start("--verify-resume", "off", args=args(job, *SLOW))
    job.wait_step(8)
    for _ in range(2):
        for pid in (*job.pids(), job.supervisor.pid):
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.002)  # as Slurm does
    step = stopped_once(job)
    assert len(job.losses()) == step


@pytest.mark.long
def test_sigterm_while_a_rank_is_stuck_in_a_collective(job: FtJob) -> None:
    """Rank 1 sleeps for ever in step 9, rank 0 waits for it in the all_reduce: no boundary will be reached."""
    job.start("--hang-timeout", "off", "--grace", "3s", args=args(job, *SLOW), env={"FAULT": "deaf 1 9"})
    wait_for(job.fired, "the fault")
    job.supervisor.terminate()
    assert stopped_once(job) == 9 == job.events("job_stopped")[-1]["step"]


@pytest.mark.long
def test_sigterm_during_startup_saves_nothing(job: FtJob) -> None:
    job.start("--grace", "3s", env={"FAULT": "never 1 -1"})
    wait_for(job.fired, "the fault")
    job.supervisor.terminate()
    assert job.wait() == 143, job.stderr
    assert job.events("checkpoint_committed") == []
    job.assert_clean()


@pytest.mark.slow
def test_sigterm_during_backoff(job: FtJob) -> None:
    options = ("--backoff-first", "1h", "--backoff-max", "1h")  # nobody waits for that long
    job.start(*options, args=args(job, *SLOW), env={"FAULT": "exception 0 5"}, ranks=1)
    job.wait_event("recovered")  # the first restart is at once; the next failure comes without progress
    job.supervisor.terminate()
    step = stopped_once(job)
    assert step >= 6


def test_sigterm_in_the_wait_before_a_restart(job: FtJob) -> None:
    script = job.home / "broken.py"
    script.write_text("raise SystemExit(3)\n")
    options = ("--backoff-first", "1h", "--backoff-max", "1h")  # nobody waits for that long
    job.start(*options, script=script, args=())
    job.wait_event("incident", 2)
    job.supervisor.terminate()
    assert job.wait() == 143, job.stderr
    job.assert_clean()


@pytest.mark.long
def test_sigterm_during_a_save(job: FtJob) -> None:
    """A checkpoint every two steps: a save is under way at nearly any moment."""
    job.start("--verify-resume", "off", "--storage-interval", "2", args=args(job, *SLOW, "--width", "700"), ranks=1)
    job.wait_event("checkpoint_committed", 3)
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr
    commits = job.events("checkpoint_committed")
    assert len({e["step"] for e in commits}) == len(commits)
    assert len(job.losses()) == commits[-1]["step"] == job.events("job_stopped")[0]["step"]
    job.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize("whom", [pytest.param("leaders", marks=pytest.mark.slow), "everybody"])
def test_sigterm_with_dataloader_workers_alive(job: FtJob, tmp_path_factory: pytest.TempPathFactory, whom: str) -> None:
    """Signalled with the workers, as Slurm does, a rank may die of its workers' death: nothing is lost either."""
    more = (*SLOW, "--workers", "2")
    calm = FtJob(tmp_path_factory.mktemp("calm"))
    calm.start(args=args(calm, *more))
    assert calm.wait() == 0, calm.stderr
    job.start(args=args(job, *more))
    job.wait_step(8)
    ranks = [psutil.Process(pid) for pid in job.pids()]
    wait_for(lambda: all(rank.children() for rank in ranks), "workers")  # between two epochs there are none
    for pid in job.pids():
        (os.killpg if whom == "everybody" else os.kill)(pid, signal.SIGTERM)
    assert job.wait() == 75, job.stderr
    job.assert_clean()
    finish(job, more)
    assert job.losses() == calm.losses()
    assert job.final() == calm.final()


@pytest.mark.long
def test_rank_that_ignores_sigterm_is_killed_after_the_grace(job: FtJob) -> None:
    script = job.home / "deaf.py"
    script.write_text(
        "import signal, time, pathlib\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path('fired').touch()\ntime.sleep(1000)\n"
    )
    job.start("--grace", "2s", script=script, args=(), ranks=1)
    wait_for((job.home / "fired").exists, "the fault")
    job.supervisor.terminate()
    assert job.wait() == 143
    assert job.events("ranks_killed")[0]["ranks"] == [0]
    job.assert_clean()


@pytest.mark.long
@pytest.mark.parametrize("stop", [pytest.param("SIGINT", marks=pytest.mark.slow), "SIGHUP"])
def test_other_signals_stop_likewise(job: FtJob, stop: str) -> None:
    job.start(args=args(job, *SLOW), ranks=1)
    job.wait_step(5)
    job.supervisor.send_signal(getattr(signal, stop))
    assert stopped_once(job) >= 5
    assert [event["by"] for event in job.events("stop_requested")] == [f"{stop} to the supervisor"]


@pytest.mark.long
def test_second_interrupt_means_now(job: FtJob) -> None:
    """Ctrl-C twice: the ranks are killed, the newest snapshot is saved all the same."""
    options = ("--hang-timeout", "off", "--grace", "1h")  # nobody waits for that long
    job.start(*options, args=args(job, *SLOW), env={"FAULT": "deaf 1 9"})
    wait_for(job.fired, "the fault")
    job.supervisor.send_signal(signal.SIGINT)
    job.wait_event("stop_requested")
    time.sleep(0.7)  # sooner it counts as one
    job.supervisor.send_signal(signal.SIGINT)
    assert stopped_once(job) == 9


@pytest.mark.long
def test_sigterm_to_a_forked_child_is_none_to_the_rank(job: FtJob, calm: FtJob) -> None:
    job.start(env={"FAULT": "children 1 12"})
    assert job.wait() == 0, job.stderr
    assert job.fired() == ["children 1 0"]
    assert job.events("stop_requested") == []
    assert job.final() == calm.final()
    job.assert_clean()


_OWN_FLAG = """
import os, signal, sys, time
import torch
import ftlaunch_hooks as ft
torch.manual_seed(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
job = ft.attach(model=model, optimizer=optimizer)
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
for step in job.steps(60):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    with open(sys.argv[1], "a") as file:
        file.write(f"{step} {model.weight.sum().item()!r}\\n")
    if told:
        break
"""


@pytest.mark.slow
def test_a_loop_that_the_scripts_own_flag_leaves_is_stopped_and_not_done(job: FtJob) -> None:
    """Taken out (the rank does not say that it was told to stop): `job_finished` and 0, and nobody requeues the job."""
    script = job.home / "own_flag.py"
    script.write_text(_OWN_FLAG)
    lines = job.home / "lines"
    job.start(script=script, args=(str(lines),), ranks=1)
    wait_for(lambda: lines.exists() and len(lines.read_text().splitlines()) >= 8, "eight steps")
    os.kill(job.events("attempt_started")[0]["pids"][0], signal.SIGTERM)
    assert job.wait() == 75, job.stderr
    made = len(lines.read_text().splitlines())
    assert job.events("job_stopped")[0]["step"] == made < 60
    job.start(script=script, args=(str(lines),), ranks=1)
    assert job.wait() == 0, job.stderr
    assert [int(line.split()[0]) for line in lines.read_text().splitlines()] == list(range(60))
