"""A rank of a job on several nodes, through what the supervisor tells it: it answers to the ranks of its node alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.nodes import WORLD
from tests.support.snapshots import Box, equal

from ftlaunch_contract import protocol
from ftlaunch_contract.pages.page import NONE, Page, create_page, page_path
from ftlaunch_contract.protocol import Resume, Why
from ftlaunch_hooks.data.positions import Positions
from ftlaunch_hooks.job.boundary import Boundary
from ftlaunch_hooks.job.restore import restore
from ftlaunch_hooks.job.supervised import Supervised
from ftlaunch_hooks.observe.step_timer import Stopwatch
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.state.state import RankState


class Member:
    """What a Job makes of its coordinator."""

    def __init__(self, directory: Path, rank: int, attempt: int = 0) -> None:
        page = Page(page_path(directory, rank))
        page.begin(attempt, os.getpid(), 1)
        page.beat(0, 0)
        self.coordinator = Supervised(page, park=lambda: None)
        self.own = Box(tensor=torch.full((3,), float(rank)))
        objects = {"own": self.own}
        ranks = self.coordinator.rank, self.coordinator.world_size, self.coordinator.peers
        self.state = RankState(objects, (), *ranks, None, self.coordinator.node)
        self.positions = Positions(objects, ())

    def begin(self, base: int = NONE) -> None:
        """The state is restored: get ready for steps."""
        coordinator = self.coordinator
        page, peers = coordinator.page, coordinator.peers
        directory, storage = coordinator.memory_dir, coordinator.storage_slots
        self.snapshots = Snapshotter(self.state, page, peers, directory, coordinator.rank, {}, base, storage)
        watch = Stopwatch(page, compared=False)
        self.boundary = Boundary(coordinator, self.state, self.snapshots, watch, before_snapshot=lambda step: None)

    def live(self, steps: range) -> tuple[Why | None, list[int]]:
        """Make steps; returns why the last one's snapshot is held, and the steps of all snapshots."""
        self.boundary.open(steps.start - 1, Resume.FRESH)
        self.boundary.announce(steps.start)
        hold, taken = None, {self.snapshots.newest: True}
        for step in steps:
            self.own.content["tensor"].add_(1)
            hold = self.boundary.cross(step, 0, last=False)
            taken[self.snapshots.newest] = True
        return hold, list(taken)

    def close(self) -> None:
        self.snapshots.close()
        for page in (*self.coordinator.peers, self.coordinator.page):
            page.close()


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch, memory: Path) -> Iterator[pytest.MonkeyPatch]:
    for name, value in {
        "WORLD_SIZE": str(WORLD), protocol.ENV_ATTEMPT: "0", protocol.ENV_MEMORY_INTERVAL: "auto",
        protocol.ENV_CHECKPOINT_DIR: str(memory / "checkpoints"), protocol.ENV_JOB_ID: "job",
        protocol.ENV_LOAD_CHECKPOINT: "",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    yield monkeypatch


def node(environ: pytest.MonkeyPatch, directory: Path, first: int, count: int, **more: Any) -> list[Member]:
    environ.setenv(protocol.ENV_MEMORY_DIR, str(directory))
    environ.setenv(protocol.ENV_NODE_RANKS, f"{first}:{count}")
    members = []
    for rank in range(first, first + count):
        environ.setenv("RANK", str(rank))
        members.append(Member(directory, rank, **more))
    return members


def make_node(environ: pytest.MonkeyPatch, directory: Path, first: int, count: int) -> list[Member]:
    directory.mkdir()
    for rank in range(first, first + count):
        create_page(page_path(directory, rank))
    return node(environ, directory, first, count)


def live(members: list[Member], steps: range) -> list[tuple[Why | None, list[int]]]:
    for member in members:
        member.begin()
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(lambda member: member.live(steps), members, timeout=60.0))


@pytest.mark.parametrize("count", [1, 2])
def test_the_nodes_take_snapshots_of_the_same_steps_and_resume_from_their_own_memory(
    environ: pytest.MonkeyPatch, memory: Path, count: int
) -> None:
    first = {"one": 0, "other": count}
    nodes = {name: make_node(environ, memory / name, begin, count) for name, begin in first.items()}
    for members in nodes.values():
        assert [member.coordinator.rank for member in members] == list(members[0].coordinator.node.ranks)
        for member in members:
            assert len(member.coordinator.peers) == count
            member.coordinator.page.announce_interval(5, 8)
            member.coordinator.page.stop_at = 23
        assert live(members, range(1, 24)) == [(Why.STOP, [*range(8), 10, 15, 20, 23])] * count
    leaders = [members[0].coordinator.page for members in nodes.values()]
    assert all(page.wanted > 0 for page in leaders)
    assert all(m.coordinator.page.wanted == 0 for members in nodes.values() for m in members[1:])

    for name, members in nodes.items():
        for before, after in zip(members, node(environ, memory / name, first[name], count, attempt=1), strict=True):
            restored = restore(after.state, after.positions, Resume.MEMORY, 23, after.coordinator)
            assert restored is not None
            assert restored.world_size == WORLD
            assert equal(after.own.content, before.own.content)
            assert after.own.content["tensor"].tolist() == [23.0 + before.coordinator.rank] * 3
            after.begin(23)
            after.close()
        for member in members:
            member.close()


def test_ranks_that_the_job_does_not_have_are_refused(environ: pytest.MonkeyPatch, memory: Path) -> None:
    with pytest.raises(ValueError, match="cannot place 2 ranks from rank 3 on: the job has 4 ranks"):
        make_node(environ, memory / "node", 3, 2)
