"""Runs a function on several gloo ranks, each in a process of its own.

The ranks are forked from a process of Python's that has only imported torch: importing torch in each rank would take
longer than most tests, and pytest's process cannot be forked because it has threads.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PRELOAD = ["torch.distributed.fsdp", "torch.distributed.checkpoint", "torch._dynamo"]


def on_ranks(world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run `function(rank, *arguments)` on `world_size` ranks of a gloo group; return the results in the order of ranks.

    A rank that fails fails the test, with its traceback. No process is left behind.
    """
    with tempfile.TemporaryDirectory() as directory:
        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)  # only the first call has an effect
        mp.start_processes(
            _run, (world_size, directory, function, arguments), nprocs=world_size, start_method="forkserver"
        )
        return [torch.load(Path(directory) / f"{rank}", weights_only=False) for rank in range(world_size)]


def _run(rank: int, world_size: int, directory: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # The ranks meet in a file instead of at a port, because tests run in parallel.
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=world_size)
    try:
        torch.save(function(rank, *arguments), Path(directory) / f"{rank}")
        dist.barrier()
    finally:
        dist.destroy_process_group()
