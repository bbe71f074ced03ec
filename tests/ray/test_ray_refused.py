"""What keeps a job from starting on Ray, said in a sentence."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.agents import free_port
from tests.support.harness import TINY

WITHOUT = "import sys; sys.modules['ray'] = None; from ftlaunch_ray import run; sys.exit(run(sys.argv[1:]))"


def refused(cwd: Path, *python: str, **environ: str) -> str:
    """The one line that the command says on stderr before it ends with 2."""
    done = subprocess.run(
        [sys.executable, *python, "--nnodes", "2", str(TINY), "--out", "out"],
        cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert list(cwd.iterdir()) == []
    (line,) = done.stderr.splitlines()
    return line


def test_ray_is_not_installed(tmp_path: Path) -> None:
    told = refused(tmp_path, "-c", WITHOUT)
    assert told.startswith("ftlaunch: cannot start on Ray: ")
    assert told.endswith("; install it on every node of the cluster: pip install 'ftlaunch[ray]'")


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (pip install ray)")
def test_no_cluster_is_where_one_was_named(tmp_path: Path) -> None:
    """Taken out: the connection that is tried first (Ray then tried for more than three minutes)."""
    address = f"127.0.0.1:{free_port()}"
    told = refused(tmp_path, "-m", "ftlaunch_ray", RAY_ADDRESS=address)
    assert told == (
        f"ftlaunch: cannot reach a Ray cluster at {address}: Connection refused;"
        " start one with `ray start --head`, or set RAY_ADDRESS to HOST:PORT of one"
    )


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (pip install ray)")
def test_a_connection_of_ray_client_does_not_do(tmp_path: Path) -> None:
    told = refused(tmp_path, "-m", "ftlaunch_ray", RAY_ADDRESS="ray://head:10001")
    assert told.startswith("ftlaunch: cannot use RAY_ADDRESS=ray://head:10001: ")
    assert "`ray job submit -- python -m ftlaunch_ray ...`" in told
