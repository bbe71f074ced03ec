"""What tests of snapshots share: a rank as far as snapshots go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.page import NONE, Page, create_page, open_pages, page_path
from ftlaunch_contract.protocol import Flag, Why
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.state.state import RankState


class Value:
    """One tensor that says which step it is of."""

    def __init__(self, size: int = 4) -> None:
        self.tensor = torch.zeros(size)

    def state_dict(self) -> dict[str, Any]:
        return {"tensor": self.tensor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tensor = state["tensor"]


class Rank:
    """A rank as far as snapshots go: its page, its state and its slots."""

    def __init__(
        self,
        directory: Path,
        rank: int,
        world_size: int,
        attempt: int = 0,
        base: int = NONE,
        storage: Path | None = None,
    ) -> None:
        self.pages = open_pages(directory, world_size)
        self.page = self.pages[rank]
        self.page.begin(attempt, os.getpid(), 0)
        self.value = Value()
        self.state = RankState({"value": self.value}, (), rank, world_size)
        self.snapshots = Snapshotter(self.state, self.page, self.pages, directory, rank, {}, base, storage)
        self.page.raise_flag(Flag.ATTACHED)

    def take(self, step: int, hold: Why | None = None, keep: int = NONE) -> bool:
        self.value.tensor.fill_(step)
        return self.snapshots.take(step, hold, keep)

    def close(self) -> None:
        self.snapshots.close()
        for page in self.pages:
            page.close()


def make_pages(directory: Path, world_size: int) -> None:
    for rank in range(world_size):
        create_page(page_path(directory, rank))


def content(memory: Path, page: Page, rank: int = 0) -> dict[int, float]:
    """step the page says a slot holds -> what the slot's file holds."""
    found = {}
    for slot, step in enumerate(page.slot_steps()):
        if step != NONE:
            tensors = load_file(layout.slot_dir(memory, rank, slot) / "opt.safetensors")
            key = "value.tensor" + (f"@{rank}" if rank else "")
            found[step] = tensors[key].unique().item()
    return found
