"""An agent that cannot begin, as a system call fails, says so in a sentence and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from tests.support.agents import free_port
from tests.support.leftovers import carriers, mark
from tests.support.waiting import wait_for

from ftlaunch_contract.protocol import memory_root

AGENT = """\
from ftlaunch.nodes.agent import main as agent
from ftlaunch.nodes.agent.head import main as head
from ftlaunch.cli.launch import main

def refuse(*_):
    raise OSError(24, "Too many open files")

{where}.{what} = refuse
main()
"""


@pytest.mark.parametrize(
    ("where", "what", "sentence"),
    [
        ("agent", "SaverLink", "cannot start: a system call: Too many open files"),
        ("head", "SignOfLife", "cannot be the head: its sign of life cannot be kept: Too many open files"),
    ],
)
def test_without_descriptors_an_agent_says_that_it_cannot_start(
    where: str, what: str, sentence: str, tmp_path: Path
) -> None:
    """Taken out: exit code 70, as for a bug, and an empty directory in memory."""
    script = AGENT.format(where=where, what=what)
    (tmp_path / "train.py").touch()
    job_id = f"test-{mark()}-{uuid.uuid4().hex[:8]}"
    nodes = ("--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    words = ("--nproc-per-node", "1", "--no-warm", "--run-dir", str(tmp_path / "run"), "--job-id", job_id, *nodes)
    done = subprocess.run(
        [sys.executable, "-c", script, *words, "train.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=90, env={**os.environ, "FT_TEST": job_id},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert f"ftlaunch: {sentence}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (memory_root(os.getuid()) / f"{job_id}.node0").exists()
    wait_for(lambda: not carriers(f"FT_TEST={job_id}"), "the end of all processes")
