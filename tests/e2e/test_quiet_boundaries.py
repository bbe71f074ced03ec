"""Steps of microseconds: most boundaries are crossed without a look, and nothing that is asked gets lost."""

from __future__ import annotations

import os
import signal

import pytest
from tests.support.harness import FtJob

pytestmark = pytest.mark.long

SCRIPT = """
import sys, time, torch, ftlaunch_hooks as ft
from ftlaunch_hooks.job.boundary import Boundary
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.set_num_threads(1)
kind, steps = sys.argv[1], int(sys.argv[2])
cross_quietly = Boundary.cross_quietly
quiet = [0, 0]
def counted(boundary, step):
    done = cross_quietly(boundary, step)
    quiet[done] += 1
    return done
Boundary.cross_quietly = counted
job = ft.attach(model=model, optimizer=optimizer)
try:
    for step in job.steps(steps):
        assert job.step == step
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step(); optimizer.zero_grad()
        if kind == "losses":
            job.step_done(float("nan") if step == 100 else 1.0)
finally:
    open("quiet", "w").write(f"{quiet[0]} {quiet[1]}")
"""


def started(job: FtJob, *options: str, args: tuple[str, ...]) -> None:
    script = job.home / "quick.py"
    script.write_text(SCRIPT)
    job.start("--memory-interval", "auto", *options, script=script, args=args, ranks=1)


def quiet_share(job: FtJob) -> float:
    loud, quiet = map(int, (job.home / "quiet").read_text().split())
    return quiet / (loud + quiet)


@pytest.mark.slow
def test_a_stop_is_heard_and_its_step_saved(job: FtJob) -> None:
    started(job, args=("stop", "100000000"))
    job.wait_step(500)
    os.kill(job.supervisor.pid, signal.SIGTERM)
    assert job.wait() == 75, job.stderr
    assert quiet_share(job) > 0.5, "the protection that is tried here was at work"
    (stop,) = job.events("stop_announced")
    assert job.events("job_stopped")[-1]["step"] == stop["step"], "one order is not seen later than it says"
    job.assert_clean()


def test_every_step_is_counted_and_the_last_one_saved(job: FtJob) -> None:
    started(job, args=("count", "3000"))
    assert job.wait() == 0, job.stderr
    assert quiet_share(job) > 0.5
    assert job.events("checkpoint_committed")[-1]["step"] == 3000
    job.assert_clean()


@pytest.mark.slow
def test_every_loss_is_judged(job: FtJob) -> None:
    started(job, args=("losses", "2000"))
    assert job.wait() == 0, job.stderr
    assert quiet_share(job) == 0.0
    assert [event["step"] for event in job.events("unsound")] == [101]
    job.assert_clean()
