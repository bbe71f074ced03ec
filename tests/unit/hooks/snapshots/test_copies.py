"""Copying a snapshot: whole or not at all, of one moment, and when memory is short."""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.support.snapshots import Rank, content, make_pages
from torch import nn

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.page import NONE, open_pages
from ftlaunch_hooks.snapshots.copies import Copies
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
    assert not rank.snapshots.capture(2)
    said = capsys.readouterr().err
    assert re.search(r"/dev/shm/ftlaunch-test-\w+ has \d+ MiB left, 67108864 MiB needed for another slot", said)
    rank.value.tensor = torch.zeros(4)
    assert not rank.snapshots.capture(3), "the ranks must agree first"
    assert content(memory, rank.page) == {1: 1}
    rank.snapshots.fit(4)
    assert rank.snapshots.budget.slots == 2, "one less than what there was no room for"
    for step in (4, 5):
        rank.take(step)
    assert content(memory, rank.page) == {4: 4, 5: 5}


# --- where the script goes on at once ---------------------------------------------------------------------


class Model(nn.Module):
    """Large enough that a copy beside the training would take its time; nothing about it looks unusual."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8 << 20))
        self.frozen = nn.Parameter(torch.zeros(8 << 20), requires_grad=False)


def written_by_data(model: Model, step: int) -> None:
    """No version counter tells of it."""
    model.weight.data.fill_(step)
    model.frozen.data.fill_(step)


def swapped(model: Model, step: int) -> None:
    """As schedule-free optimizers and averages do at the top of a step."""
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(torch.full_like(tensor, step))


def replaced(model: Model, step: int) -> None:
    for tensor in model.parameters():
        tensor.data = torch.full_like(tensor, step)


@pytest.mark.parametrize("change", [written_by_data, swapped, replaced])
def test_a_snapshot_is_of_its_boundary_whatever_changes_the_tensors_after_it(
    memory: Path, change: Callable[[Model, int], None]
) -> None:
    """Tried with a copy in a thread: the slot holds values of two steps."""
    make_pages(memory, 1)
    [page] = open_pages(memory, 1)
    page.begin(0, os.getpid(), 0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    snapshots = Snapshotter(RankState({"model": model, "optimizer": optimizer}, (), 0, 1), page, [page], memory, 0, {})
    for step in range(1, 6):
        snapshots.capture(step)
        change(model, step)
        slot = layout.slot_dir(memory, 0, page.slot_steps().index(step))
        for tensor in load_file(slot / "model.safetensors").values():
            assert tensor.eq(step - 1).all()
    snapshots.close()
    page.close()


def test_private_copies_are_of_the_moment_they_were_made() -> None:
    """What is done on a GPU with room for it, here in this process's memory."""
    source, target = torch.arange(4.0), torch.zeros(4)
    private = Copies([(source, target)]).copy_on_devices()
    assert private is not None
    source.fill_(-1)
    assert target.eq(0).all()
    private.run()
    assert target.tolist() == [0, 1, 2, 3]


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
