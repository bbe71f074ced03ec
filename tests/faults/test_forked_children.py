"""Children that a rank forks (multiprocessing, fork): what they train is not the rank's."""

from __future__ import annotations

import pytest
from tests.support.harness import FtJob

SCRIPT = """
import os
from pathlib import Path
import torch
import ftlaunch_hooks as ft
from ftlaunch_contract.pages.page import Page, page_path

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.set_num_threads(1)


def step():
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def words():
    page = Page(page_path(Path(os.environ["FTLAUNCH_MEMORY_DIR"]), 0))
    found = list(page.q[:256])  # the half that the rank writes
    page.close()
    return found


def child(name, attaches=False):
    pid = os.fork()
    if pid == 0:
        before, told = words(), ""
        for _ in range(30):
            step()
        if attaches:
            try:
                ft.attach(model=model)
            except RuntimeError as error:
                told = str(error)
        with open("told", "a") as file:
            file.write(f"{name} {words() == before} {told}\\n")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


step()
child("before", attaches=True)
job = ft.attach(model=model, optimizer=optimizer)
for number in job.steps(6):
    step()
    if number == 3:
        child("within", attaches=True)
child("behind")
"""


@pytest.mark.long
def test_their_steps_touch_nothing_of_the_rank(job: FtJob) -> None:
    """Taken out: without the handlers at fork the page changes; without `is_forked` the child attaches in its place."""
    (job.home / "forks.py").write_text(SCRIPT)
    job.start("--memory-interval", "2", script=job.home / "forks.py", args=(), ranks=1)
    assert job.wait() == 0, job.stderr
    before, within, behind = (job.home / "told").read_text().splitlines()
    assert before.startswith("before True cannot attach: a rank has forked this process")
    assert within.startswith("within True cannot attach: a rank has forked this process")
    assert behind.strip() == "behind True"
    assert job.events("incident") == []
    assert job.events("resumed")[0]["step"] == 0
    job.assert_clean()
