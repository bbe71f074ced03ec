"""Scripts and programs that know nothing of us: their progress is seen, and its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.harness import JOBS, FtJob
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long

UNMODIFIED = JOBS / "unmodified.py"


def start(job: FtJob, *options: str, fault: str = "none -1 -1", steps: int = 400, seconds: float = 0.02) -> None:
    args = (str(job.out), str(steps), str(seconds))
    job.start("--grace", "1s", *options, script=UNMODIFIED, args=args, env={"FAULT": fault})


@pytest.mark.slow
def test_steps_are_seen_and_the_job_ends_as_any_other(job: FtJob) -> None:
    start(job)
    status = wait_for(
        lambda: (s := job.status()) and s["ranks"] and all(r["seen"] > 5 for r in s["ranks"]) and s, "steps"
    )
    assert [rank["phase"] for rank in status["ranks"]] == ["train", "train"]
    assert [rank["step"] for rank in status["ranks"]] == [-1, -1], "steps of ours there are none"
    assert job.wait() == 0, job.stderr
    assert job.events("incident") == []
    job.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "step", "seconds"),
    [
        pytest.param("sleep", 50, 0.02, marks=pytest.mark.slow),
        pytest.param("fork", 50, 0.02, marks=pytest.mark.slow),
        ("sleep", 5, 0.001),
    ],
)
def test_a_rank_that_makes_no_step_any_more(job: FtJob, kind: str, step: int, seconds: float) -> None:
    """A forked child's optimizer steps are not the rank's. Five steps are over before anybody looks."""
    start(job, "--hang-timeout", "3s", fault=f"{kind} 1 {step}", seconds=seconds)
    assert job.wait() == 0, job.stderr
    assert job.fired() == [kind]
    [incident] = job.events("incident")
    assert (incident["kind"], incident["rank"]) == ("hang", 1)
    assert "rank 1 is hung: no optimizer step for" in incident["sentence"]
    assert "(limit 3.0 s)" in incident["sentence"]
    assert "unmodified.py" in job.log(0, 1), "its stacks"
    assert job.stderr.count("no rank has called attach(): each attempt begins anew, or where the script resumes") == 1
    job.assert_clean()


@pytest.mark.slow
def test_a_rank_that_is_busy_without_a_step_has_longer(job: FtJob) -> None:
    """It may be evaluating, and that has a limit of its own."""
    start(job, "--hang-timeout", "3s", "--eval-timeout", "30s", fault="evaluate 1 50")
    assert job.wait() == 0, job.stderr
    assert job.fired() == ["evaluate"]
    assert job.events("incident") == []


@pytest.mark.slow
def test_a_rank_that_is_busy_for_ever_is_hung_all_the_same(job: FtJob) -> None:
    start(job, "--hang-timeout", "800ms", fault="spin 1 50", steps=100)
    assert job.wait() == 0, job.stderr
    [incident] = job.events("incident")
    assert (incident["kind"], incident["rank"]) == ("hang", 1)
    job.assert_clean()


CALLS = """
import sys, time
from pathlib import Path
import torch
from torch.nn.modules.module import _global_forward_hooks as hooks
model, before = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), 0
end = time.monotonic() + 60
while time.monotonic() < end and not Path("enough").exists():
    model(torch.ones(2))
    now = len(hooks)  # 1 where it was put in place during this very call: then the next call takes it away
    assert not (before and now), "a call takes the hook away"
    before = now
    time.sleep(0.01)
"""


def test_calls_of_modules_are_signs_of_life_where_there_is_no_optimizer(job: FtJob, tmp_path: Path) -> None:
    """The beat of attach() or of an optimizer's first step never comes: without passes.py there is one at import."""
    (tmp_path / "calls.py").write_text(CALLS)
    job.start(script=tmp_path / "calls.py", args=(), ranks=1)
    beats: list[float] = []

    def often_enough() -> bool:
        status = job.status()
        if status and status["ranks"] and (age := status["ranks"][0]["beat_age"]) is not None:
            beat = time.monotonic() - age
            if not beats or beat > beats[-1] + 0.5:
                beats.append(beat)
        return len(beats) >= 4

    wait_for(often_enough, "beats")
    (job.home / "enough").touch()
    assert job.wait() == 0, job.stderr
    job.assert_clean()


@pytest.mark.slow
def test_a_program_without_torch_that_does_nothing(job: FtJob) -> None:
    code = (
        "import os, pathlib, time\n"
        "if os.environ['RANK'] == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    pathlib.Path('fired').touch()\n"
        "    time.sleep(1000)\n"
    )
    job.start("--grace", "1s", "--hang-timeout", "1s", "--no-python", script=sys.executable, args=("-c", code))
    assert job.wait() == 0, job.stderr
    assert (job.home / "fired").exists()
    [incident] = job.events("incident")
    assert (incident["kind"], incident["rank"]) == ("hang", 1)
    assert "rank 1 has not said anything, has done nothing for" in incident["sentence"]
    job.assert_clean()


@pytest.mark.slow
def test_a_program_that_works_without_a_word_is_left_alone(job: FtJob) -> None:
    code = "import time\nend = time.monotonic() + 22\nwhile time.monotonic() < end: pass\n"
    job.start("--hang-timeout", "1s", "--no-python", script=sys.executable, args=("-c", code), ranks=1)
    assert job.wait() == 0, job.stderr
    assert job.events("hang_suspected") == []


@pytest.mark.slow
def test_without_a_supervisor_nothing_is_observed(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "import torch.optim\n"
        "print(len(sys.modules['torch.optim.optimizer']._global_optimizer_post_hooks))\n"
        "import ftlaunch_hooks.process.bootstrap as b\n"
        "print(b.own_page())\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "0\nNone\n", "neither a hook of ours, nor a page"


def test_torch_is_imported_whatever_became_of_our_memory(tmp_path: Path) -> None:
    """The page is gone: that is said, and torch is there."""
    code = (
        "import os, subprocess, sys\n"
        "os.environ['FTLAUNCH_SUPERVISOR'] = f'{os.getpid()}:1'\n"
        "sys.exit(subprocess.run([sys.executable, '-c', 'import torch; print(torch.ones(1))'],"
        " start_new_session=True).returncode)\n"
    )
    env = {**os.environ, "FTLAUNCH_MEMORY_DIR": str(tmp_path / "gone"), "RANK": "0", "FTLAUNCH_ATTEMPT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "tensor([1.])\n"), done.stderr
    assert "ftlaunch: cannot report this rank's progress" in done.stderr
