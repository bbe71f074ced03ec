"""Launching: what ranks are given, what reaches the terminal, what is refused."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.harness import FtJob
from tests.support.waiting import wait_for
from torch.distributed.run import get_args_parser

HAS_PREFIX_OPTION = any(action.dest == "log_line_prefix_template" for action in get_args_parser()._actions)
PRINT_ENV = "import json, os, sys; print(json.dumps(dict(os.environ))); print(sys.argv[1:], file=sys.stderr)\n"


def rank_env(job: FtJob, rank: int) -> dict[str, str]:
    return dict(json.loads(job.log(0, rank).splitlines()[0]))


@pytest.mark.long
def test_environment_is_torchruns(job: FtJob) -> None:
    """Every variable that torchrun 2.13 gives to a rank is there, and says the same where it can."""
    script = job.home / "env.py"
    script.write_text(PRINT_ENV)
    job.start("--warm", script=script, args=("--lr", "3"))
    assert job.wait() == 0, job.stderr
    out = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3",
         "--redirects", "3", "--log-dir", str(job.home / "torchrun"), str(script), "--lr", "3"],
        check=False, capture_output=True, text=True, cwd=job.home,
    )  # fmt: skip
    assert out.returncode == 0, out.stderr
    differ = {
        "MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE",
        "TORCHELASTIC_USE_AGENT_STORE", "ROLE_NAME", "TORCHELASTIC_SIGNALS_TO_HANDLE", "OLDPWD", "PWD", "_",
    }  # fmt: skip
    for rank in (0, 1):
        path = next((job.home / "torchrun").glob(f"**/attempt_0/{rank}/stdout.log"))
        theirs, ours = json.loads(path.read_text()), rank_env(job, rank)
        base = set(os.environ)
        for name in set(theirs) - base - {"FT_TEST", "LINES", "COLUMNS"}:  # readline sets them, and torchrun imports it
            assert name in ours, name
            if name not in differ:
                assert ours[name] == theirs[name], name
    assert rank_env(job, 0)["MASTER_PORT"] == rank_env(job, 1)["MASTER_PORT"]
    assert rank_env(job, 0)["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    assert job.log(0, 0).splitlines()[1] == "['--lr', '3']"


def test_fresh_port_for_every_attempt(job: FtJob) -> None:
    script = job.home / "fail.py"
    script.write_text("import os\nraise SystemExit(int(os.environ['TORCHELASTIC_RESTART_COUNT']) < 2)\n")
    job.start("--backoff-first", "10ms", script=script, args=())
    assert job.wait() == 0, job.stderr
    ports = [event["port"] for event in job.events("attempt_started")]
    assert len(ports) == len(set(ports)) == 3


@pytest.mark.long
def test_module_and_program(job: FtJob) -> None:
    package = job.home / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "main.py").write_text("import sys; print('as', __name__, sys.argv[1:])\n")
    job.start("-m", script="pkg.main", args=("--x", "1"), env={"PYTHONPATH": str(job.home)}, ranks=1)
    assert job.wait() == 0, job.stderr
    assert job.log(0, 0).splitlines()[-1] == "as __main__ ['--x', '1']"
    job.start("--no-python", script="/bin/sh", args=("-c", "echo rank $RANK"), ranks=2)
    assert job.wait() == 0, job.stderr
    assert job.log(0, 1).endswith("rank 1\n")
    job.assert_clean()


def test_program_that_cannot_be_started(job: FtJob) -> None:
    job.start("--no-python", "--max-restarts", "0", script="/nonexistent/program", args=(), ranks=1)
    assert job.wait() in (1, 2)
    assert "/nonexistent/program" in job.stderr
    assert "Traceback" not in job.stderr
    job.assert_clean()


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "shown"), [((), {0}), (("--tee", "3"), {0, 1}), (("--local-ranks-filter", "1"), {1})]
)
def test_whose_output_reaches_the_terminal(job: FtJob, options: tuple[str, ...], shown: set[int]) -> None:
    script = job.home / "hello.py"
    script.write_text("import os\nprint('hello from', os.environ['RANK'])\n")
    job.start(*options, script=script, args=())
    assert job.wait() == 0, job.stderr
    assert sorted(job.stdout.splitlines()) == [f"[{rank}] hello from {rank}" for rank in sorted(shown)]
    assert job.log(0, 1) == "hello from 1\n"


@pytest.mark.slow
def test_lines_begin_as_torchrun_makes_them_of_a_template(job: FtJob) -> None:
    """The macros that torchrun knows, one that it does not, and the variable that sets the template."""
    script = job.home / "say.py"
    script.write_text("print('hello')\n")
    macros = ["role_name", "local_rank", "rank", "other", "$", *(["hostname"] if HAS_PREFIX_OPTION else [])]
    template = "".join(f"<${{{name}}}>" for name in macros)
    variables = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": template}
    options = ("--tee", "3", "--role", "trainer")
    job.start(*options, script=script, args=(), env=variables)
    assert job.wait() == 0, job.stderr
    by_option = ("--log-line-prefix-template", template) if HAS_PREFIX_OPTION else ()
    out = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *options, *by_option,
         "--log-dir", str(job.home / "torchrun"), str(script)],
        check=False, capture_output=True, text=True, cwd=job.home, env={**os.environ, **variables},
    )  # fmt: skip
    assert out.returncode == 0, out.stderr
    theirs = [line for line in out.stdout.splitlines() if line.endswith("hello")]
    assert len(theirs) == 2
    assert sorted(job.stdout.splitlines()) == sorted(theirs)


@pytest.mark.long
def test_what_an_earlier_run_printed_is_not_shown_again(job: FtJob) -> None:
    """Its attempts have the same numbers, and so the same logs: they are added to."""
    script = job.home / "runs.py"
    for run in ("first", "second"):
        script.write_text(f"print('the {run} run', end='')\n")
        job.start(script=script, args=(), ranks=1)
        assert job.wait() == 0, job.stderr
        assert job.stdout == f"[0] the {run} run\n"
    assert job.log(0, 0) == "the first runthe second run"


def test_terminal_that_takes_nothing_holds_up_nobody(job: FtJob) -> None:
    """The reader of our stdout never reads: the ranks finish all the same, and so do we."""
    script = job.home / "loud.py"
    script.write_text("for _ in range(20000): print('x' * 100)\nopen('done', 'w').close()\n")
    job.start(script=script, args=(), ranks=1, stdout=subprocess.PIPE)
    assert job.wait() == 0, job.stderr
    assert (job.home / "done").exists()
    assert job.supervisor.stdout is not None
    job.supervisor.stdout.close()


def test_terminal_that_goes_away(job: FtJob) -> None:
    """SSH is lost: the pipe is closed. The job goes on."""
    script = job.home / "loud.py"
    script.write_text(
        "import time, os\nwhile not os.path.exists('go'): print('x' * 1000); time.sleep(.01)\n"
        "open('done', 'w').close()\n"
    )
    job.start(script=script, args=(), ranks=1, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process = job.supervisor
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    process.stderr.close()
    wait_for(lambda: len(job.log(0, 0)) > 100_000, "output after the loss")
    (job.home / "go").touch()
    assert process.wait(60) == 0
    assert (job.home / "done").exists()


def test_places_are_private(job: FtJob) -> None:
    script = job.home / "sleep.py"
    script.write_text("import time; time.sleep(100)\n")
    job.start(script=script, args=(), ranks=1)
    job.wait_event("attempt_started")
    wait_for(job.status, "an answer")
    assert stat.S_IMODE(job.memory.stat().st_mode) == 0o700
    for entry in job.memory.iterdir():
        assert stat.S_IMODE(entry.stat().st_mode) & 0o077 == 0, entry
    job.supervisor.terminate()
    assert job.wait() == 143
    job.assert_clean()


NOT_SAVEABLE = """
import torch, ftlaunch_hooks as ft
class Odd:
    def state_dict(self): return {"cache": {"x": {1, 2}}}
    def load_state_dict(self, state): pass
model = torch.nn.Linear(2, 2)
job = ft.attach(model=model, sampler=Odd())
for step in job.steps(3): pass
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (NOT_SAVEABLE, ("sampler.cache", "set")),
        pytest.param(
            "import ftlaunch_hooks as ft\nft.attach(scheduler=3)\n", ("scheduler", "state_dict"), marks=pytest.mark.slow
        ),
        pytest.param("import ftlaunch_hooks as ft\nft.attach(frozen=['modle'])\n", ("modle",), marks=pytest.mark.slow),
    ],
)
def test_what_a_rank_cannot_attach_is_named(job: FtJob, body: str, words: tuple[str, ...]) -> None:
    script = job.home / "odd.py"
    script.write_text(body)
    job.start("--max-restarts", "0", script=script, args=(), ranks=1)
    assert job.wait() == 1
    (incident,) = job.events("incident")
    for word in words:
        assert word in incident["sentence"], incident["sentence"]
    job.assert_clean()


def test_checkpoint_dir_that_cannot_be_written(job: FtJob, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    job.start("--checkpoint-dir", str(file / "below"))
    assert job.wait() == 2
    assert len(job.stderr.splitlines()) == 1
    assert str(file) in job.stderr
    assert not job.run_dir.exists()
    assert not job.memory.exists()


def test_the_journal_keeps_no_secret_of_the_command_line(job: FtJob) -> None:
    job.start("--no-python", script="true", args=("--api-key", "s3cr3t-value", "--rate", "5"), ranks=1)
    assert job.wait() == 0, job.stderr
    assert job.events("job_started")[0]["command"] == ["true", "--api-key", "***", "--rate", "5"]
    assert "s3cr3t" not in job.journal_text + job.stderr
