"""What cannot be imported once for all ranks: they are started, or do without it, and it is said why."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from tests.support.forked import by_default, is_forked
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

UNFIT = {
    "fails": ("1 / 0\n", "ended with 1: ZeroDivisionError: division by zero"),
    "exits": ("import os\nos._exit(4)\n", "ended with 4 "),
    "cuda": ("import torch\ntorch.cuda.is_initialized = lambda: True\n", "initialises CUDA"),
    "forked": ("import torch\ntorch.cuda._is_in_bad_fork = lambda: True\n", "asks CUDA"),
}  # fmt: skip


@pytest.mark.long
@by_default
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in ("fails", "cuda") else pytest.mark.slow) for kind in UNFIT],
)
def test_a_module_that_cannot_be_shared_makes_plain_ranks(job: FtJob, kind: str) -> None:
    code, words = UNFIT[kind]
    (job.home / "unfit.py").write_text(code)
    script = job.home / "script.py"
    script.write_text("import os, sys\nprint('unfit' in sys.modules)\n")
    job.start("--preload", "unfit", script=script, args=())
    assert job.wait() == 0, job.stderr
    (line,) = [line for line in job.stderr.splitlines() if "plain processes" in line]
    assert words in line
    assert job.log(0, 0) == "False\n"
    job.assert_clean()


SPOILING = {
    "threads": ("import threading, time\n"
                "threading.Thread(target=time.sleep, args=(99,), name='pool-7', daemon=True).start()\n",
                "spoils starts a thread when it is imported (pool-7)"),
    "files": ("kept = open(__file__)\n", "spoils leaves files open when it is imported"),
}  # fmt: skip


@pytest.mark.slow
@by_default
@pytest.mark.parametrize("kind", ["threads", pytest.param("files", marks=pytest.mark.slow)])
def test_a_module_that_is_in_the_way_is_left_out_alone(job: FtJob, kind: str) -> None:
    """What is preloaded beside it stays warm. Taken out: without `_restart` in main() all ranks are plain."""
    code, words = SPOILING[kind]
    (job.home / "spoils.py").write_text(code)
    (job.home / "fine.py").write_text("import os\nPARENT = os.getpid()\n")
    script = job.home / "script.py"
    script.write_text("import fine, os, sys\nprint('spoils' in sys.modules, fine.PARENT != os.getpid())\n")
    job.start("--preload", "fine,spoils", script=script, args=())
    assert job.wait() == 0, job.stderr
    (line,) = [line for line in " ".join(job.stderr.split()).split("ftlaunch: ") if "not preloading" in line]
    assert line.startswith("not preloading spoils: ")
    assert words in line
    assert job.log(0, 0) == "False True\n"
    assert [event["state"] for event in job.events("warm_parent")][:2] == ["without", "ready"]
    job.assert_clean()


@pytest.mark.long
@pytest.mark.parametrize("asked", [True, False])
def test_without_torch_it_is_said_only_to_who_asked(job: FtJob, asked: bool) -> None:
    script = job.home / "script.py"
    script.write_text("import sys\nprint(sys.argv[0][-9:])\n")
    bare = job.home / "bare"
    os.symlink(sys._base_executable, bare)  # type: ignore[attr-defined]
    job.start(
        *(["--warm"] if asked else ["--preload", "json"]),
        script=script,
        args=(),
        env={"PYTHON_EXEC": str(bare)},
        ranks=1,
    )
    assert job.wait() == 0, job.stderr
    assert ("torch is not installed" in job.stderr) is asked
    assert job.log(0, 0) == "script.py\n"


LATE = """
import importlib, threading, time
importing = importlib.import_module
def spoilt(name, package=None):
    if name == "torch._dynamo":
        threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
    return importing(name, package)
importlib.import_module = spoilt
"""


@pytest.mark.slow
@by_default
def test_what_is_imported_later_and_cannot_be_shared_is_left_out(job: FtJob) -> None:
    """The warm parent, in one process, starts over without a module that cannot be shared."""
    (job.home / "late.py").write_text(LATE)
    script = job.home / "script.py"
    script.write_text("import os, signal\nos.environ['FTLAUNCH_ATTEMPT'] == '0' and signal.pause()\n")
    job.start("--preload", "late", script=script, args=(), ranks=1)
    (rank,) = job.wait_event("attempt_started")["pids"]
    parent = job.wait_warm("ready")["pid"]
    wait_for(lambda: len(job.events("warm_parent")) == 3, "another beginning")
    states = [(event["state"], event["pid"]) for event in job.events("warm_parent")]
    assert states == [("ready", parent), ("without", parent), ("ready", parent)]
    os.kill(rank, signal.SIGKILL)
    job.wait_event("attempt_started", 2)
    assert is_forked(job)
    assert job.wait() == 0, job.stderr
    assert "not preloading torch._dynamo: torch._dynamo starts a thread" in " ".join(job.stderr.split())
    job.assert_clean()


@by_default
@pytest.mark.slow
def test_auto_preloads_what_the_script_imports_and_leaves_out_what_is_in_the_way(job: FtJob) -> None:
    """Taken out: without `_restart` in _import_late_modules() the ranks after the first attempt are plain."""
    installed = job.home / "installed"
    installed.mkdir()
    (installed / "spoils.py").write_text(SPOILING["threads"][0])
    (installed / "fine.py").write_text("import os\nPARENT = os.getpid()\ndef __getattr__(name):\n    return name\n")
    (installed / "broken.py").write_text("1 / 0\n")
    script = job.home / "script.py"
    script.write_text(
        "from fine import PARENT, lazy\nimport spoils\nimport os, sys, time\n"
        "from pathlib import Path\nprint('spoils' in sys.modules, PARENT != os.getpid())\n"
        "if os.environ['FTLAUNCH_ATTEMPT'] == '0':\n"
        "    while not Path('go').exists(): time.sleep(0.01)\n"
        "    sys.exit(1)\nimport broken\n"
    )
    job.start("--preload", "auto", script=script, args=(), ranks=1, env={"PYTHONPATH": str(installed)})
    wait_for(lambda: any(event["state"] == "complete" for event in job.events("warm_parent")), "late imports")
    (job.home / "go").touch()
    job.wait()
    assert job.log(0, 0) == "True False\n", "the first attempt begins before that"
    assert job.log(1, 0).splitlines()[0] == "True True", job.journal_text
    said = " ".join(job.stderr.split())
    assert "not preloading spoils: spoils starts a thread when it is imported (pool-7)" in said
    assert "broken" not in [event.get("why") for event in job.events("warm_parent")]
    job.assert_clean()
