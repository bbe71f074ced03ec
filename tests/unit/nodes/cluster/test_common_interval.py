"""One interval for all nodes: the longest that one of them wants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftlaunch.nodes.cluster.copies.common_interval import CommonInterval
from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch_contract.pages import words


class Job:
    """Two nodes of two ranks; the first rank of each says what the node wants."""

    def __init__(self, home: Path) -> None:
        self.pages = ClusterPages(home, 4)
        self.told: list[Any] = []
        self.pages.send = lambda verb, values: self.told.append((verb, *values))
        self.interval = CommonInterval(self.pages, 2)

    def want(self, *wanted: int) -> None:
        """What each node wants."""
        for node, every in enumerate(wanted):
            self.pages[2 * node].wanted = every


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_nothing_is_announced_before_every_node_has_said(job: Job) -> None:
    job.want(5, 0)
    job.pages[3].wanted = 7  # not the first of its node
    job.interval.update(lambda: (10, 1.0))
    assert job.told == []


def test_the_longest_counts_from_a_step_that_is_ahead_of_all(job: Job) -> None:
    job.want(5, 9)
    job.interval.update(lambda: (10, 1.0))
    assert job.told == [("every", 9, 13)]
    assert job.pages[3].q[words.EVERY] == 9


def test_a_little_longer_is_not_another_one(job: Job) -> None:
    job.want(10, 10)
    job.interval.update(lambda: (0, 1.0))
    for other in (8, 9, 11, 12):
        job.want(other, other)
        job.interval.update(lambda: (100, 1.0))
    assert job.told == [("every", 10, 3)]
    job.want(13, 5)
    job.interval.update(lambda: (100, 1.0))
    assert job.told[1:] == [("every", 13, 103)]


def test_the_next_is_announced_once_the_last_holds(job: Job) -> None:
    """Two announcements under way could reach two nodes between two boundaries."""
    job.want(10, 10)
    job.interval.update(lambda: (0, 1.0))
    job.want(50, 10)
    job.interval.update(lambda: (2, 1.0))
    assert len(job.told) == 1
    job.interval.update(lambda: (3, 1.0))
    assert len(job.told) == 2


def test_another_attempt_may_begin_at_an_earlier_step(job: Job) -> None:
    job.want(10, 10)
    job.interval.update(lambda: (1000, 1.0))
    job.interval.begin()
    job.want(20, 20)
    job.interval.update(lambda: (5, 1.0))
    assert job.told[-1] == ("every", 20, 8)
