"""Training with all that goes beside a plain loop, through whole saves and restores of snapshots and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.snapshots import Box, equal
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ftlaunch_contract.checkpoint import layout, verify, writer
from ftlaunch_contract.pages.page import NONE, Page, create_page, open_pages, page_path
from ftlaunch_contract.protocol import Flag
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.state.state import RankState, StateError
from ftlaunch_hooks.storage.saved_tensors import CheckpointReader, MemoryReader, SavedTensors


class Net(nn.Module):
    """Tied weights, half precision, buffers of narrow kinds, one of nothing, and one that is a view of a view."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.middle = nn.Linear(8, 8).to(torch.bfloat16)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.across = nn.Parameter(torch.randn(8, 6).t())  # not contiguous
        self.register_buffer("counts", torch.zeros(11, dtype=torch.int8))
        self.register_buffer("eights", torch.zeros(8).to(torch.float8_e4m3fn))
        self.register_buffer("nothing", torch.zeros(0, 3))
        self.register_buffer("every_other", torch.zeros(12)[::2])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.counts += torch.bincount(tokens, minlength=11).to(torch.int8)
            self.eights.copy_(self.embed.weight[0].to(torch.float8_e4m3fn))
            self.every_other += self.across[:, 0]
        x = self.middle(self.embed(tokens).to(torch.bfloat16)).float()
        return self.head(x + (x @ self.across.t()) @ self.across)


class Run:
    """A loop of one's own: two micro-batches a step, a scaler that skips steps, an average, a growing history."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.net = Net()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01)  # its state comes with the first step
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=2)
        self.average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.skipped = False
        self.history = Box(losses=torch.zeros(0), best=None)
        objects = {
            "model": self.net, "optimizer": self.optimizer, "scaler": self.scaler, "average": self.average,
            "history": self.history,
        }  # fmt: skip
        self.state = RankState(objects, (), 0, 1)

    def step(self, step: int) -> str:
        total = 0.0
        for _ in range(2):
            tokens = torch.randint(11, (5,))
            loss = nn.functional.cross_entropy(self.net(tokens), tokens.roll(1)) / 2
            self.scaler.scale(loss * (float("inf") if step == 2 else 1.0)).backward()
            total += loss.item()
        self.scaler.step(self.optimizer)  # skipped in step 2
        scale = self.scaler.get_scale()
        self.scaler.update()
        self.skipped |= self.scaler.get_scale() < scale
        self.optimizer.zero_grad()
        self.average.update_parameters(self.net)
        content: Any = self.history.content
        self.history.content = {"losses": torch.cat([content["losses"], torch.tensor([total])]), "best": {"step": step}}
        return total.hex()

    def everything(self) -> dict[str, Any]:
        return {
            "model": self.net.state_dict(), "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(), "average": self.average.state_dict(),
            "history": self.history.state_dict(), "rng": torch.get_rng_state(),
        }  # fmt: skip


@pytest.fixture
def page(memory: Path) -> Iterator[Page]:
    create_page(page_path(memory, 0))
    [page] = open_pages(memory, 1)
    page.begin(0, os.getpid(), 0)
    page.raise_flag(Flag.ATTACHED)
    yield page
    page.close()


def saved(memory: Path, page: Page, checkpoints: Path, step: int, source: str) -> SavedTensors:
    slot = page.slot_steps().index(step)
    if source == "memory":
        return MemoryReader(memory, step, 1, {0: slot})
    target = writer.SaveTarget(checkpoints, step, "interval", "kinds", 1)
    writer.prepare(target)
    writer.write_shard_of(target, 0, layout.slot_dir(memory, 0, slot))
    directory, _ = writer.commit(target)
    verify.verify(directory)
    return CheckpointReader(directory)


@pytest.mark.parametrize("at", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("source", ["memory", "storage"])
def test_it_goes_on_bit_for_bit(source: str, at: int, memory: Path, page: Page, tmp_path: Path) -> None:
    run = Run(1)
    snapshots = Snapshotter(run.state, page, [page], memory, 0, {})
    snapshots.fit(0)
    run.state.restore_rng()
    for step in range(at):
        run.step(step)
        assert snapshots.capture(step + 1)
    if not at:
        assert snapshots.capture(0)
    before = run.everything()
    other = Run(2)
    other.state.restore(saved(memory, page, tmp_path, at, source))
    other.state.restore_rng()
    snapshots.close()
    assert equal(other.everything(), before)
    assert other.net.head.weight is other.net.embed.weight
    steps = range(at, at + 4)
    losses, there = [other.step(step) for step in steps], other.everything()
    torch.set_rng_state(before["rng"])
    assert losses == [run.step(step) for step in steps]
    assert equal(there, run.everything())
    assert run.skipped, "the scaler has skipped a step"


def test_a_buffer_of_another_shape_is_refused_with_its_path(memory: Path, page: Page, tmp_path: Path) -> None:
    """A tensor of a module is read into the one there is: what changes its shape belongs into an object of its own."""
    run = Run(1)
    snapshots = Snapshotter(run.state, page, [page], memory, 0, {})
    run.net.nothing = torch.zeros(4, 3)
    snapshots.capture(1)
    snapshots.close()
    with pytest.raises(StateError, match=r"cannot restore `model\.nothing`: it is F32 of shape \(0, 3\), F32 of shape"):
        Run(2).state.restore(saved(memory, page, tmp_path, 1, "memory"))


def test_shapes_that_change_with_every_step_are_laid_out_anew(memory: Path, page: Page) -> None:
    box = Box(tensor=torch.zeros(1))
    snapshots = Snapshotter(RankState({"box": box}, (), 0, 1), page, [page], memory, 0, {})
    for step in (1, 2, 3, 1000, 7, 0, 0, 70000, 7):
        box.content = {"tensor": torch.full((step,), float(step)), "half": torch.ones(step, dtype=torch.float16)}
        number = max(page.slot_steps()) + 1 if max(page.slot_steps()) != NONE else 0
        assert snapshots.capture(number)
        reader = MemoryReader(memory, number, 1, {0: page.slot_steps().index(number)})
        assert equal(reader.pieces("box.tensor")[0].tensor(), box.content["tensor"])
        assert equal(reader.pieces("box.half")[0].tensor(), box.content["half"])
    snapshots.close()
