"""`ps` shows a forked rank as the script that it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.forked import by_default, is_forked
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

_SCRIPT = """
import multiprocessing, os, sys, time
from pathlib import Path
import torch

def child():
    Path(f"child_{os.environ['RANK']}").write_bytes(Path("/proc/self/cmdline").read_bytes())

multiprocessing.get_context("fork").Process(target=child).start()
Path(f"rank_{os.environ['RANK']}").write_bytes(Path("/proc/self/cmdline").read_bytes())
assert sys.orig_argv[1:] == ["-u", __file__, *sys.argv[1:]], sys.orig_argv
while not Path("over").exists():
    time.sleep(0.01)
"""


@pytest.mark.long
@by_default
@pytest.mark.parametrize("words", [("--lr", "0.1"), ("--data", "x" * 3000, "ünd \U0001f600", "")])
def test_a_forked_rank_shows_the_command_of_its_script(job: FtJob, words: tuple[str, ...]) -> None:
    """Taken out: `fork_server.py 13 script ...` for each rank of each job on the machine."""
    script = job.home / "train.py"
    script.write_text(_SCRIPT)
    job.start("--warm", script=script, args=words)
    pids = job.pids()
    assert is_forked(job)
    wanted = b"".join(os.fsencode(word) + b"\0" for word in (sys.executable, "-u", str(script), *words))
    for rank, pid in enumerate(pids):
        wait_for_file(job.home / f"rank_{rank}", job)
        wait_for_file(job.home / f"child_{rank}", job)
        for shown in (job.home / f"rank_{rank}", job.home / f"child_{rank}"):
            content = shown.read_bytes()
            assert content.rstrip(b"\0") == wanted.rstrip(b"\0")
        listed = subprocess.run(
            ["ps", "-o", "args=", "-ww", "-p", str(pid)], capture_output=True, text=True, check=True
        )
        assert listed.stdout.startswith(f"{sys.executable} -u {script} {words[0]}")
        assert "fork_server" not in listed.stdout
    (job.home / "over").touch()
    assert job.wait() == 0, job.stderr


def wait_for_file(path: Path, job: FtJob) -> None:
    wait_for(lambda: path.exists() and path.stat().st_size, f"{path.name}:\n{job.stderr}")
