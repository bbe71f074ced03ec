"""Running a function on several gloo ranks, each a process of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def on_ranks(world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run `function(rank, *arguments)` on `world_size` ranks of a gloo group; returns what each returned.

    A rank that fails, fails the test, with its traceback; no process is left behind.
    """
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(_run, (world_size, directory, function, arguments), nprocs=world_size)
        return [torch.load(Path(directory) / f"{rank}", weights_only=False) for rank in range(world_size)]


def _run(rank: int, world_size: int, directory: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # a file, not a port: tests run beside each other
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=world_size)
    try:
        torch.save(function(rank, *arguments), Path(directory) / f"{rank}")
        dist.barrier()
    finally:
        dist.destroy_process_group()
