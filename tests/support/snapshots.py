"""The part of a rank that state and snapshots need: a net, objects with state, a page and slots."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.page import NONE, Page, create_page, open_pages, page_path
from ftlaunch_contract.protocol import Flag, Why
from ftlaunch_hooks.snapshots.slot import Slot
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.storage.saved_tensors import MemoryReader


class Value:
    """A tensor whose elements all hold the step of its state."""

    def __init__(self, size: int = 4) -> None:
        self.tensor = torch.zeros(size)

    def state_dict(self) -> dict[str, Any]:
        return {"tensor": self.tensor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tensor = state["tensor"]


class Rank:
    """A rank with its page, its state and its slots."""

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
        self.state = RankState({"value": self.value}, (), rank=rank, world_size=world_size)
        self.snapshots = Snapshotter(
            state=self.state,
            page=self.page,
            peers=self.pages,
            directory=directory,
            rank=rank,
            versions={},
            base=base,
            storage=storage,
        )
        self.page.raise_flag(Flag.ATTACHED)

    def take(self, step: int, hold: Why | None = None, keep: int = NONE) -> bool:
        self.value.tensor.fill_(step)
        return self.snapshots.capture(step, hold, keep)

    def close(self) -> None:
        self.snapshots.close()
        for page in self.pages:
            page.close()


def make_pages(directory: Path, world_size: int) -> None:
    for rank in range(world_size):
        create_page(page_path(directory, rank))


def content(memory: Path, page: Page, rank: int = 0) -> dict[int, float]:
    """Return, for each step that the page promises in a slot, the step that the slot's file holds."""
    found = {}
    for slot, step in enumerate(page.slot_steps()):
        if step != NONE:
            tensors = load_file(layout.slot_dir(memory, rank, slot) / "opt.safetensors")
            key = "value.tensor" + (f"@{rank}" if rank else "")
            found[step] = tensors[key].unique().item()
    return found


def save(state: RankState, directory: Path, step: int = 3) -> MemoryReader:
    """Write a snapshot without pages; return a reader of it."""
    write_slot(state, directory, step)
    return MemoryReader(directory, step, 1, {0: 0})


def write_slot(state: RankState, directory: Path, step: int) -> Path:
    """Write a rank's snapshot into the rank's slot 0; return the slot's directory."""
    collected = state.collect()
    state.sample(collected)
    slot = Slot(directory, state.rank, 0)
    slot.lay_out(collected.items)
    slot.host.run()
    slot.device.run()
    common = {"step": step, "consumed_samples": 5, "versions": {}, "state": collected.state}
    common[layout.OUTSIDE] = list(collected.outside)
    slot.write_common(json.dumps(common).encode())
    slot.close()
    return slot.directory


class Box:
    """An object with state_dict() and load_state_dict()."""

    def __init__(self, **content: Any) -> None:
        self.content: Mapping[str, Any] = content

    def state_dict(self) -> Mapping[str, Any]:
        return self.content

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.content = state


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any = None, steps: int = 3) -> list[float]:
    losses = []
    for _ in range(steps):
        inputs = torch.randn(8, 4, dtype=next(model.parameters()).dtype)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(inputs).square().mean()  # noqa: B023 - called at once
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
        if scheduler is not None:
            scheduler.step()
    return losses


def equal(a: Any, b: Any) -> bool:
    """Return whether two values are equal bit for bit, types included."""
    if isinstance(a, torch.Tensor):
        return (
            a.dtype == b.dtype
            and a.shape == b.shape
            and a.contiguous().view(-1).view(torch.uint8).equal(b.contiguous().view(-1).view(torch.uint8))
        )
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b
