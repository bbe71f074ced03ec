"""An error that would come again in every attempt: the job is given up at once, and what it had is saved."""

from __future__ import annotations

import pytest
from tests.support.harness import FtJob

SCRIPT = """
import sys
from pathlib import Path
import torch
import ftlaunch_hooks as ft

class Growing:
    rounds = 0
    def state_dict(self):
        if self.rounds == 4:
            with open("fired", "a") as file:
                file.write("fired\\n")
        return {"what": (lambda: 1) if self.rounds == 4 else self.rounds}
    def load_state_dict(self, state):
        self.rounds = state["what"]

if sys.argv[1] == "attach":
    Path("fired").open("a").write("fired\\n")
    ft.attach(model=object())
try:
    raise KeyError("dealt with")
except KeyError:
    growing = Growing()
job = ft.attach(model=torch.nn.Linear(2, 2), growing=growing)
for step in job.steps(8):
    growing.rounds += 1
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("where", "error", "committed"),
    [("attach", "argument `model` has no state_dict()", -1), ("boundary", "growing", 3)],
)
def test_it_is_given_up_at_once(job: FtJob, where: str, error: str, committed: int) -> None:
    """Taken out: without `cause.final` in policy/restart_policy.py it is tried again."""
    script = job.home / "train.py"
    script.write_text(SCRIPT)
    job.start(script=script, args=(where,), ranks=1)
    assert job.wait() == 1, job.stderr
    assert (job.home / "fired").read_text().splitlines() == ["fired"]
    (incident,) = job.events("incident")
    assert incident["verdict"] == "give up"
    assert "giving up: it would come again in every attempt" in incident["sentence"]
    assert "StateError" in incident["sentence"]
    assert error in incident["sentence"]
    assert "train.py" in job.stdout + job.stderr
    for ours in ("ftlaunch_hooks/", "ftlaunch_contract/", "supervisor/ftlaunch"):
        assert ours not in job.stdout + job.stderr, job.stdout + job.stderr
    assert [event["step"] for event in job.events("checkpoint_committed")][-1:] == (
        [committed] if committed > 0 else []
    )
    job.assert_clean()


IN_A_THREAD = """
import threading
import torch
import ftlaunch_hooks as ft

def train():
    open("fired", "a").write("fired\\n")
    job = ft.attach(model=torch.nn.Linear(2, 2))
    for step in job.steps(8):
        pass

thread = threading.Thread(target=train, name="trainer")
thread.start()
thread.join()
"""


@pytest.mark.long
def test_a_training_in_another_thread_is_refused_and_never_done(job: FtJob) -> None:
    """Taken out: without `_end_with_threads` the thread ends, the script ends with 0, and the job is done."""
    script = job.home / "train.py"
    script.write_text(IN_A_THREAD)
    job.start(script=script, args=(), ranks=1)
    assert job.wait() == 1, job.stderr
    assert (job.home / "fired").read_text().splitlines() == ["fired"]
    (incident,) = job.events("incident")
    assert incident["verdict"] == "give up"
    assert "cannot attach: attach() was called in the thread 'trainer'" in incident["sentence"]
    assert "train.py" in job.stdout + job.stderr
    assert "ftlaunch_hooks/" not in job.stdout + job.stderr, job.stdout + job.stderr
    job.assert_clean()


def test_a_script_that_finds_no_torch_is_given_up_at_once_with_the_remedy(job: FtJob) -> None:
    """Taken out: without its rule in configs/fault_rules.yaml it is tried again, and nothing says how to get torch."""
    script = job.home / "train.py"
    script.write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")  # what import says
    job.start("--no-warm", script=script, args=(), ranks=1)
    assert job.wait() == 1, job.stderr
    (incident,) = job.events("incident")
    assert (incident["verdict"], incident["kind"]) == ("give up", "no-torch")
    assert "or `pip install 'ftlaunch[torch]'`); giving up: it would come again" in incident["sentence"]
    job.assert_clean()


@pytest.mark.long
@pytest.mark.parametrize(
    ("body", "code"), [("raise NameError('nothing')", 93), ("import os; os.kill(os.getpid(), 9)", 1)]
)
def test_the_code_for_no_further_start_is_kept_for_what_comes_again(job: FtJob, body: str, code: int) -> None:
    """Taken out: a scheduler that queues again on every code but one of its choice started a NameError for ever."""
    script = job.home / "train.py"
    script.write_text(body)
    options = ("--no-warm", "--no-requeue-code", "93", "--max-restarts", "1", "--backoff-first", "0s")
    job.start(*options, script=script, args=(), ranks=1)
    assert job.wait() == code, job.stderr
    assert job.events("job_failed")[0]["code"] == code
    assert f'"code": {code},' in (job.run_dir / "report.json").read_text()
