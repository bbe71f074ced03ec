"""The launchers of the race, and how each is started.

The other launchers get an environment of their own, made here.
"""

from __future__ import annotations

import compileall
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".venv-peers"
# Packages that the example job imports, so that all launchers import the same.
_WANTED = ["numpy", "tqdm", "safetensors"]
_PEER = "nvidia-resiliency-ext"


@dataclass(frozen=True)
class Launcher:
    """A launcher that takes part in the race."""

    name: str
    argv: tuple[str, ...]  # the command before the script
    env: Mapping[str, str] = field(default_factory=dict)
    restarts: bool = True
    sees_hangs: bool = False
    hang_argv: tuple[str, ...] = ()  # further options: a hang timeout of 3 s
    kept_by: str = "file"  # how the example job keeps its state, see jobs/example.py


def prepare() -> str:
    """Make the environment of the other launchers if there is none; return what is in it.

    Everything is compiled to bytecode, as pip does, because first starts are not what is measured.

    Raises:
        CalledProcessError: the environment cannot be made.
    """
    for folder in ("supervisor", "worker_hooks", "scripts"):
        compileall.compile_dir(ROOT / folder, quiet=1)
    python = PEERS / "bin" / "python"
    done = PEERS / ".installed"
    if not done.exists():
        print(f"making {PEERS} (a minute)", file=sys.stderr)
        shutil.rmtree(PEERS, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
        torch = f"torch=={version('torch').partition('+')[0]}"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", torch, *_WANTED, _PEER]
        subprocess.run(pip, check=True)
        done.touch()
    code = f"from importlib.metadata import version as v; print('torch', v('torch'), '{_PEER}', v('{_PEER}'))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def launchers(ranks: int) -> list[Launcher]:
    """Return all launchers, for `ranks` ranks on this machine."""
    size = ("--nproc-per-node", str(ranks), "--max-restarts", "20")
    # The others do not wait before a restart without progress, and this small job makes no progress.
    size_and_pace = (*size, "--backoff-first", "1ms")
    ours = (str(Path(sys.executable).with_name("ftlaunch")), *size_and_pace, "--job-id", f"bench-{os.getpid()}")
    torchrun = (str(PEERS / "bin" / "torchrun"), *size)
    nvidia = (str(PEERS / "bin" / "ft_launcher"), *size, "--ignore-missing-fault-tol-cfg")
    limits = ("--ft-initial-rank-heartbeat-timeout", "60", "--ft-rank-heartbeat-timeout", "3")
    hang = ("--hang-timeout", "3s", "--startup-timeout", "60s")
    return [
        Launcher("ftlaunch", ours, sees_hangs=True, hang_argv=hang, kept_by="hooks"),
        Launcher("torchrun", torchrun),
        Launcher("torchrun, store not shared", torchrun, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
        Launcher("ft_launcher", nvidia, sees_hangs=True, hang_argv=limits),
        Launcher("python", (str(PEERS / "bin" / "python"), "-u"), restarts=False),
    ]


def by_hand(ranks: int) -> list[dict[str, str]]:
    """Return the environment of each rank for `python` without a launcher."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
