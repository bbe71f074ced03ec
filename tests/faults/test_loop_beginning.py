"""A loop over epochs that begins at 0 though the job has resumed is told before its first step is made again.

Taken out: without `watch_beginning` in attach() nothing is said before that step, and of two scripts nothing ever.
"""

from __future__ import annotations

import re

import pytest
from tests.support.harness import FtJob

HEAD = """
import os, sys, torch, ftlaunch_hooks as ft
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=4)

def train(x, job):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    print("made a step", flush=True)
    job.step_done()
    if not os.path.exists("killed") and job.attempt == 0 and os.environ["FTLAUNCH_ATTEMPT"] == "0" and made(1) == 8:
        open("killed", "w").close()
        os.kill(os.getpid(), 9)

counted = []
def made(one):
    counted.append(one)
    return len(counted)
"""
FLAT = """
job = ft.attach(model=model, optimizer=optimizer)
for epoch in range(3):
    for x, in loader:
        train(x, job)
job.finish()
"""
NESTED = """
class Trainer:
    def train(self):
        self.job = ft.attach(model=model, optimizer=optimizer)
        for epoch in range(3):
            self.run_epoch()
        self.job.finish()
    def run_epoch(self):
        for i, (x,) in enumerate(loader):
            train(x, self.job)
Trainer().train()
"""
ASKS = """
job = ft.attach(model=model, optimizer=optimizer)
for epoch in range(job.step // 6, 3):
    for i, (x,) in enumerate(loader):
        if epoch * 6 + i >= job.step:
            train(x, job)
job.finish()
"""
COUNTS = """
job = ft.attach(model=model, optimizer=optimizer)
for epoch in range(3):
    for i, (x,) in enumerate(loader):
        if epoch * 6 + i < job.step:
            continue
        train(x, job)
job.finish()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (NESTED, True),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in ((FLAT, True), (ASKS, False), (COUNTS, False))),
    ],
    ids=["nested", "flat", "asks", "counts"],
)
def test_a_loop_that_begins_at_its_first_pass_is_told_before_its_first_step(job: FtJob, body: str, said: bool) -> None:
    script = job.home / "train.py"
    script.write_text(HEAD + body)
    job.start(script=script, args=(), ranks=1)
    assert job.wait() == 0, job.stderr
    assert (job.home / "killed").exists()
    assert [event["source"] for event in job.events("resumed")][-1] == "memory"
    log = job.log(1, 0)
    # the step before the kill may be made again to prove the resume
    found = re.search("begins at its first pass, although the job goes on at step [78]", log)
    assert (found is not None) is said, log
    assert "first pass" not in job.log(0, 0).replace("after a resume it begins at its first pass", "")
    if found is not None:
        assert found.start() < log.index("made a step")
        assert "write `for epoch in job.epochs(3): for batch in job.batches(loader):`" in log
    job.assert_clean()
