"""Snapshots of tensors on a GPU: pinned slots, a stream of their own, nothing that holds up the training loop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.page import create_page, open_pages, page_path
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.state.state import RankState

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

LARGE = 64 << 20  # parameters: 256 MiB


class Large(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(LARGE, device="cuda"))
        self.register_buffer("mean", torch.zeros(3, device="cuda"))


class Training:
    def __init__(self, memory: Path) -> None:
        create_page(page_path(memory, 0))
        [self.page] = open_pages(memory, 1)
        self.page.begin(0, os.getpid(), 0)
        self.model = Large()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.model.weight.grad = torch.ones(LARGE, device="cuda")
        state = RankState({"model": self.model, "optimizer": self.optimizer}, (), 0, 1)
        self.snapshots = Snapshotter(state, self.page, [self.page], memory, 0, {})

    def content(self, memory: Path, step: int) -> tuple[list[float], list[float]]:
        slot = layout.slot_dir(memory, 0, self.page.slot_steps().index(step))
        tensors = load_file(slot / "model.safetensors")
        return tensors["model.weight"].unique().tolist(), tensors["model.mean"].unique().tolist()


@pytest.fixture
def training(memory: Path) -> Iterator[Training]:
    training = Training(memory)
    yield training
    training.snapshots.close()
    training.page.close()


def occupy(milliseconds: int) -> None:
    """Keep the GPU's current stream busy."""
    torch.cuda._sleep(int(milliseconds * 1e6))  # cycles, at about a GHz or two


def test_the_optimizer_on_the_gpu_waits_for_the_copy(memory: Path, training: Training) -> None:
    for step in range(1, 8):
        training.snapshots.take(step)
        training.model.mean.fill_(step)  # what a forward does to a buffer
        training.optimizer.step()  # changes every weight
        training.snapshots.settle()
        assert training.content(memory, step) == ([1 - step], [step - 1])


def test_nothing_waits_for_the_gpu(memory: Path, training: Training) -> None:
    """With half a second of work queued, a snapshot and the step after it are queued behind it at once."""
    for step in (1, 2, 3):  # every slot has its memory
        training.snapshots.take(step)
    training.snapshots.settle()
    torch.cuda.synchronize()
    occupy(500)
    queued = torch.cuda.Event()
    queued.record()
    training.snapshots.take(4)
    training.optimizer.step()
    assert not queued.query(), "the training loop has waited for the GPU"
    assert 4 not in training.page.slot_steps(), "what is not copied yet is not committed"
    training.snapshots.settle()
    assert queued.query()
    assert training.content(memory, 4) == ([0.0], [0.0])


def test_slots_are_pinned_and_given_back(training: Training) -> None:
    training.snapshots.take(1)
    training.snapshots.settle()
    slot = training.snapshots._slots[training.page.slot_steps().index(1)]
    targets = slot.gpu.targets
    assert targets
    assert all(target.is_pinned() for target in targets)
    training.model.weight = nn.Parameter(torch.ones(3, device="cuda"))  # laid out anew
    for step in (2, 3, 4, 5):
        training.snapshots.take(step)
    training.snapshots.settle()
    assert max(training.page.slot_steps()) == 5


def test_what_cannot_be_pinned_is_copied_all_the_same(
    memory: Path, training: Training, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda.cudart(), "cudaHostRegister", lambda *_: 2)  # the driver's word for "no memory"
    for step in (1, 2, 3):
        training.snapshots.take(step)
        training.optimizer.step()
    training.snapshots.settle()
    assert training.content(memory, 3)[0] == [-2.0]
    assert capsys.readouterr().err.count("cannot pin the memory of snapshots") == 1
