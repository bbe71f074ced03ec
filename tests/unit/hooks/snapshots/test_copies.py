"""Copying a snapshot: whole or not at all, beside the training, and when memory is short."""

from __future__ import annotations

import itertools
import os
import re
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.support.snapshots import Rank, content, make_pages
from torch import nn

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.page import NONE, create_page, open_pages, page_path
from ftlaunch_contract.protocol import Flag
from ftlaunch_hooks.snapshots.slot_file import SnapshotError
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.state.state import RankState


@pytest.fixture
def rank(memory: Path) -> Iterator[Rank]:
    make_pages(memory, 1)
    rank = Rank(memory, 0, 1)
    yield rank
    rank.close()


# --- memory that is short ---------------------------------------------------------------------------------


def test_memory_that_is_short_is_said_and_costs_the_snapshot(
    memory: Path, rank: Rank, capsys: pytest.CaptureFixture[str]
) -> None:
    rank.take(1)
    rank.value.tensor = torch.zeros(1).expand(1 << 44)
    assert not rank.snapshots.take(2)
    said = capsys.readouterr().err
    assert re.search(r"/dev/shm/ftlaunch-test-\w+ has \d+ MiB left, 67108864 MiB needed for another slot", said)
    rank.value.tensor = torch.zeros(4)
    assert not rank.snapshots.take(3), "the ranks must agree first"
    assert content(memory, rank.page) == {1: 1}
    rank.snapshots.fit(4)
    assert rank.snapshots.budget.slots == 2, "one less than what there was no room for"
    for step in (4, 5):
        rank.take(step)
    assert content(memory, rank.page) == {4: 4, 5: 5}


# --- beside the training ----------------------------------------------------------------------------------

LARGE = 24 << 20  # parameters: 96 MiB, above what is copied at the boundary


class Large(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(LARGE))
        self.register_buffer("mean", torch.zeros(3))


class Training:
    """A model large enough to be copied in the background, and its snapshots."""

    def __init__(self, memory: Path) -> None:
        create_page(page_path(memory, 0))
        [self.page] = open_pages(memory, 1)
        self.page.begin(0, os.getpid(), 0)
        self.model = Large()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.model.weight.grad = torch.ones(LARGE)
        state = RankState({"model": self.model, "optimizer": self.optimizer}, (), 0, 1)
        self.snapshots = Snapshotter(state, self.page, [self.page], memory, 0, {})
        self.page.raise_flag(Flag.ATTACHED)


@pytest.fixture
def training(memory: Path) -> Iterator[Training]:
    training = Training(memory)
    yield training
    training.snapshots.close()
    training.page.close()


def test_the_optimizer_waits_for_the_copy_and_buffers_are_copied_at_once(memory: Path, training: Training) -> None:
    for step in range(1, 6):
        training.snapshots.take(step)
        training.model.mean.fill_(step)  # what a forward does to a buffer
        training.optimizer.step()  # changes every weight
        training.snapshots.fence()
        slot = layout.slot_dir(memory, 0, training.page.slot_steps().index(step))
        tensors = load_file(slot / "model.safetensors")
        assert tensors["model.weight"].eq(1 - step).all()
        assert tensors["model.mean"].unique().tolist() == [step - 1]


def test_what_fails_in_the_background_surfaces_and_is_not_committed(training: Training) -> None:
    for step in (1, 2):
        training.snapshots.take(step)
    training.snapshots.fence()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))  # common.json cannot be written
        training.snapshots.take(3)
        with pytest.raises(SnapshotError, match=r"cannot keep snapshots in memory: .*File too large"):
            training.optimizer.step()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(training.page.slot_steps()) == [NONE, NONE, NONE, 2]
    training.snapshots.take(4)
    training.snapshots.fence()
    assert sorted(training.page.slot_steps()) == [NONE, NONE, 2, 4]


def test_what_a_page_says_is_whole_at_every_moment(memory: Path, rank: Rank) -> None:
    rank.value.tensor = torch.zeros(1 << 16)
    rank.take(0)
    done = threading.Event()

    def write() -> None:
        for step in itertools.count(1):
            if done.is_set():
                return
            rank.take(step)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        checked = 0
        while checked < 300:
            for slot, step in enumerate(rank.page.slot_steps()):
                if step == NONE:
                    continue
                path = layout.slot_dir(memory, 0, slot) / "opt.safetensors"
                found = np.frombuffer(path.read_bytes()[-(4 << 16) :], dtype=np.float32)
                if rank.page.slot_steps()[slot] == step:
                    assert (found == step).all()
                    checked += 1
    finally:
        done.set()
        writer.join()
