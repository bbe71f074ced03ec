"""The ranks of an attempt, whose processes are known by what their agents say."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.fakes.clock import Clock
from tests.support.fakes.files import FilesInPlace

from ftlaunch.memory.pages import Pages
from ftlaunch.nodes.cluster.mirrors.cluster_ranks import ClusterRanks
from ftlaunch.ranks.rank import Rank
from ftlaunch.spec.resolve import resolve
from ftlaunch_contract.protocol import Flag, Phase, Resume

NO_FLAG = Flag(0)


class FakeNodes:
    """Nodes that do what they are told at once, and say nothing."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.clear = False

    def begin(self, group: ClusterRanks) -> int:
        """Start nothing."""
        return 29500

    def send_all(self, do: str) -> None:
        """Note it."""
        self.told.append(do)

    def is_cleared(self) -> bool:
        """What the test says."""
        return self.clear


class Job:
    """One attempt of two ranks."""

    def __init__(self, home: Path) -> None:
        (home / "train.py").touch()
        flags = {"nproc_per_node": "2", "run_dir": str(home / "run"), "job_id": "fake"}
        spec = resolve(str(home / "train.py"), [], flags, {})
        self.clock, self.nodes, self.ended = Clock(), FakeNodes(), list[int]()
        (home / "memory").mkdir()
        self.pages = Pages(home / "memory", 2)
        self.group = ClusterRanks(spec, self.pages, self.nodes, self.clock, FilesInPlace(), 4, self._exited)
        self.group.spawn()

    def _exited(self, rank: Rank) -> None:
        self.ended.append(rank.number)

    def attach(self, rank: int, flags: Flag = NO_FLAG) -> None:
        """What a rank writes, mirrored."""
        page = self.pages[rank]
        page.begin(4, 100 + rank, 1)
        page.set_resumed(Resume.FRESH, 0)
        page.raise_flag(Flag.ATTACHED | flags)
        page.phase = Phase.TRAIN
        page.beat(7, int(self.clock() * 1e9))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_ends_come_in_the_order_in_which_they_are_heard_and_once(job: Job) -> None:
    job.attach(0)
    job.attach(1)
    job.group.on_exit(1, -9)
    job.group.on_exit(0, 1)
    job.group.on_exit(1, 0)
    assert job.ended == [1, 0]
    assert [(one.rank, one.returncode, one.step) for one in job.group.failed(must_read=True)] == [(0, 1, 7), (1, -9, 7)]
    orders = {one.rank: one.order for one in job.group.failed(must_read=True)}
    assert orders[1] < orders[0]
    assert job.group.empty


def test_a_rank_that_was_seen_dying_keeps_its_place_in_the_order(job: Job) -> None:
    job.attach(0)
    job.attach(1)
    job.group.on_dying({1: 9})
    assert job.group.note_dying([0, 1], 77, job.clock()) == {1: 9}
    assert job.group.note_dying([0, 1], 77, job.clock()) == {}, "each rank once"
    assert job.group.dying().keys() == {1}
    job.group.on_exit(0, 1)
    job.group.on_exit(1, -9)
    orders = {one.rank: one.order for one in job.group.failed(must_read=True)}
    assert orders[1] < orders[0]


def test_a_lost_node_is_evidence_whatever_its_ranks_had_said(job: Job) -> None:
    job.attach(0, Flag.LOOP_LEFT | Flag.ENDED_WELL)
    job.attach(1, Flag.LOOP_LEFT | Flag.ENDED_WELL)
    job.group.on_exit(0, 0)
    job.group.on_exit(1, -9, "node 1 is lost: silence")
    assert [(one.rank, one.lost) for one in job.group.failed(must_read=True)] == [(1, "node 1 is lost: silence")]
    assert not job.group.all_done()


def test_a_node_that_is_lost_after_its_ranks_have_ended_loses_nothing(job: Job) -> None:
    for rank in (0, 1):
        job.attach(rank, Flag.LOOP_LEFT | Flag.ENDED_WELL)
        job.group.on_exit(rank, 0)
        job.group.on_exit(rank, -9, "node 0 is lost: silence")
    assert job.group.failed(must_read=True) == []
    assert job.group.all_done()


@pytest.mark.parametrize(
    ("flags", "code", "done"),
    [
        (Flag.LOOP_LEFT, 0, True),
        (NO_FLAG, 0, False),  # before its loop was over
        (Flag.LOOP_LEFT, 1, False),
        (Flag.LOOP_LEFT | Flag.STOPPED, 0, False),
        (Flag.LOOP_LEFT | Flag.ENDED_WELL, -6, True),  # its interpreter's end has failed, not its script
    ],
)
def test_all_are_done_where_each_has_ended_honestly(job: Job, flags: Flag, code: int, done: bool) -> None:
    job.attach(0, Flag.LOOP_LEFT)
    job.group.on_exit(0, 0)
    assert not job.group.all_done()
    job.attach(1, flags)
    job.group.on_exit(1, code)
    assert job.group.all_done() == done


def test_what_agents_see_from_outside_is_in_the_views(job: Job) -> None:
    job.attach(0)
    job.group.on_noted(1, 5.0, 6.0, busy=True)
    job.group.on_stopped(range(2), [1])
    attached, bare = job.group.views()
    assert (attached.attached, attached.step) == (True, 7)
    assert (bare.attached, bare.active, bare.logged) == (False, 5.0, 6.0)
    assert job.group.stopped() == {1}
    job.group.on_stopped([1], [])
    assert job.group.stopped() == set()


def test_an_autopsy_asks_for_living_ranks_that_have_been_started(job: Job) -> None:
    assert job.group.subjects("hung") == []
    job.group.on_started({0: 10, 1: 11}, {1: 500})
    assert [(one["rank"], one["pid"]) for one in job.group.subjects("hung")] == [(0, 10), (1, 11)]
    assert job.group.ranks[1].log_from == 500
    job.group.on_exit(0, 1)
    assert [one["rank"] for one in job.group.subjects("hung")] == [1]


def test_ends_are_asked_of_all_nodes_and_the_nodes_say_when_it_is_over(job: Job) -> None:
    job.group.ask_to_leave()
    job.group.kill()
    assert job.nodes.told == ["leave", "kill"]
    assert all(rank.asked for rank in job.group.ranks.values())
    assert not job.group.sweep(())
    job.nodes.clear = True
    assert job.group.sweep(())
    assert not job.group.refilling
    assert list(job.group.refill(0.0)) == []


def test_a_mirror_of_another_attempt_says_nothing(job: Job) -> None:
    job.attach(0)
    job.pages[1].begin(3, 9, 1)
    assert [rank for rank, _ in job.group.pages()] == [0]
    assert job.group.resuming
