"""Measures how long a step waits for a checkpoint of ours, torch.save, dcp.save and dcp.async_save, in turn."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from states import Trained
from torch.distributed.checkpoint.state_dict_saver import async_save, save

import ftlaunch_hooks as ft

# Every other step is undisturbed. `ours` comes first, because the hooks take the snapshot before a step whose number is
# a multiple of the memory interval, and that interval is the length of this list.
TURNS = ("ours", "", "torch.save", "", "dcp.save", "", "dcp.async_save", "")


class Others:
    """The ways to save that torch offers."""

    def __init__(self, trained: Trained, home: Path) -> None:
        self._trained = trained
        self._home = home
        self._pending: Any = None
        # In the training's own group, async_save and the backward pass would wait for each other.
        self._group = dist.new_group()
        self.save: dict[str, Callable[[], None]] = {
            "torch.save": self._torch_save, "dcp.save": self._dcp_save, "dcp.async_save": self._dcp_async_save
        }  # fmt: skip

    def _torch_save(self) -> None:
        """Save on rank 0 while the others wait, as scripts under DistributedDataParallel do."""
        if dist.get_rank() == 0:
            torch.save(self._trained.state(), self._home / "torch.pt")
        dist.barrier()

    def _dcp_save(self) -> None:
        save(self._trained.state(), checkpoint_id=self._home / "dcp")

    def _dcp_async_save(self) -> None:
        place = self._home / "async"
        self._pending = async_save(self._trained.state(), checkpoint_id=place, process_group=self._group)

    def settle(self) -> None:
        """Wait for what runs in the background, and delete everything that was saved."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None
        dist.barrier()
        if dist.get_rank() == 0:
            for path in self._home.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        dist.barrier()


def measure(trained: Trained, job: ft.Job, home: Path, rounds: int) -> dict[str, Any]:
    """Measure the stall of each way to save, and the length of the step after it, in seconds by round on this rank.

    A stall is the time of the call at the boundary, without the time of an undisturbed boundary.
    """
    others = Others(trained, home)
    stalls: dict[str, list[float]] = {turn: [] for turn in TURNS}
    steps: dict[str, list[float]] = {turn: [] for turn in TURNS}
    ended = time.perf_counter()
    for step in job.steps((rounds + 1) * len(TURNS)):  # the first round warms everything up
        began = time.perf_counter()
        turn = TURNS[step % len(TURNS)]
        if turn in others.save:
            others.save[turn]()
            ended = began
            began = time.perf_counter()
        trained.step()
        stalls[turn].append(began - ended)
        dist.barrier()
        steps[turn].append(time.perf_counter() - began)
        others.settle()
        ended = time.perf_counter()
    plain = statistics.median(stalls[""])
    return {
        "steps": {turn: _of_rounds(values, rounds) for turn, values in steps.items()},
        "stalls": {
            turn: [stall - plain for stall in _of_rounds(values, rounds)] for turn, values in stalls.items() if turn
        },
    }


def _of_rounds(values: list[float], rounds: int) -> list[float]:
    """Return the median of each round but the first."""
    each = len(values) // (rounds + 1)
    return [statistics.median(values[n * each : (n + 1) * each]) for n in range(1, rounds + 1)]
