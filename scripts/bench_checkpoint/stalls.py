"""What a training step waits for a checkpoint: ours, torch.save, dcp.save, dcp.async_save, step by step in turn."""

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

# Every other step is undisturbed. Ours comes first: the snapshot is taken by the hooks before the step whose number
# is a multiple of the memory interval, which is the length of this list.
TURNS = ("ours", "", "torch.save", "", "dcp.save", "", "dcp.async_save", "")


class Others:
    """The ways to save that torch has."""

    def __init__(self, trained: Trained, home: Path) -> None:
        self._trained, self._home = trained, home
        self._pending: Any = None
        self._group = dist.new_group()  # on the training's own, async_save and the backward wait for each other
        self.save: dict[str, Callable[[], None]] = {
            "torch.save": self._torch_save, "dcp.save": self._dcp_save, "dcp.async_save": self._dcp_async_save
        }  # fmt: skip

    def _torch_save(self) -> None:
        """By rank 0, the others waiting, as scripts under DistributedDataParallel do."""
        if dist.get_rank() == 0:
            torch.save(self._trained.state(), self._home / "torch.pt")
        dist.barrier()

    def _dcp_save(self) -> None:
        save(self._trained.state(), checkpoint_id=self._home / "dcp")

    def _dcp_async_save(self) -> None:
        place = self._home / "async"
        self._pending = async_save(self._trained.state(), checkpoint_id=place, process_group=self._group)

    def settle(self) -> None:
        """Let what runs in the background end, and forget what was saved."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None
        dist.barrier()
        if dist.get_rank() == 0:
            for path in self._home.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        dist.barrier()


def measure(trained: Trained, job: ft.Job, home: Path, rounds: int) -> dict[str, Any]:
    """Seconds by round, on this rank: the stall of each way to save, and the length of the step after it.

    A stall is the call at the boundary; an undisturbed boundary is taken off.
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
            ended, began = began, time.perf_counter()
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
    """The median of each round but the first."""
    each = len(values) // (rounds + 1)
    return [statistics.median(values[n * each : (n + 1) * each]) for n in range(1, rounds + 1)]
