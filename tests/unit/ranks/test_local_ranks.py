"""What is said of ranks that cannot be started."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.memory.pages import Pages
from ftlaunch.ranks.cpu_affinity import CpuAffinity
from ftlaunch.ranks.fork_client import Warm
from ftlaunch.ranks.gpu_memory import GpuMemoryWait
from ftlaunch.ranks.local_ranks import LocalRanks, Surroundings
from ftlaunch.ranks.rank import SpawnFailed
from ftlaunch.spec.nodes.placement import Placement
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.file_thread import FileThread
from ftlaunch.system.gpu_activity import Gpus
from ftlaunch.system.helper_process import HelperProcesses


def test_a_node_without_a_place_for_logs_names_a_rank_of_its_own(tmp_path: Path) -> None:
    """Taken out (rank 0, whichever node it is): the head takes no word of another node's rank, and waits for ever."""
    (tmp_path / "train.py").touch()
    given = {"nproc_per_node": "2", "warm": "no", "run_dir": str(tmp_path)}
    spec = resolve(str(tmp_path / "train.py"), (), given, {})
    spec.log_dir.touch()
    (tmp_path / "memory").mkdir()
    unused: Any = None
    files = FileThread(tmp_path)
    warm = Warm(HelperProcesses(), spec, {}, tmp_path / "warm.log", files, lambda *_, **__: None)
    gpus = Gpus()
    try:
        around = Surroundings(
            spec=spec, pages=Pages(tmp_path / "memory", 2, first=2), gpus=gpus, fork_server=warm, base_env={},
            affinity=CpuAffinity(None, print), gpu_memory=GpuMemoryWait(gpus, unused, time.monotonic, print),
            control=tmp_path / "control", marker="NO=MARK", loop=unused, clock=time.monotonic, files=files,
        )  # fmt: skip
        group = LocalRanks(around, 0, unused, Placement(2, 2, 4, 1, 2, "10.0.0.1", 29500))
        with pytest.raises(SpawnFailed, match=r"attempt_0: Not a directory") as failed:
            group.spawn()
    finally:
        files.close()
    assert failed.value.rank == 2
