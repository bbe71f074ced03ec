"""What each of many ranks waits for, and since when."""

from __future__ import annotations

import random

import pytest
from tests.support.views import view

from ftlaunch.health.hang_detection import (
    kind_of,
    waits,
)
from ftlaunch.ranks.view import RankView


def waited_for(seen: RankView, views: list[RankView]) -> tuple[str, float]:
    """What the progress of one attached rank in training waits for, as health.py words it, one rank after another."""
    since = max(seen.beat, seen.started)
    others = [other for other in views if other is not seen and not other.exited and other.step <= seen.step]
    since = max([since, *(other.left for other in others)])
    slow = [other for other in others if kind_of(other) != "train"]
    if not slow:
        return "train", since
    last = max(slow, key=lambda other: max(other.beat, other.started))
    return kind_of(last), max(since, last.beat, last.started)


@pytest.mark.parametrize("seed", range(5))
def test_the_wait_of_each_of_many_ranks(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
        views = []
        for rank in range(chance.randint(1, 7)):
            started, ended = chance.random(), chance.random() if chance.random() < 0.3 else 0.0
            seen = view(rank=rank, started=started, beat=chance.random(), step=chance.randint(-1, 3), ended=ended)
            phase = chance.choice(["train", "train", "eval", "checkpoint"])
            left = chance.random() * max(seen.beat, started)
            views.append(seen._replace(exited=ended > 0, phase=phase, first_step_done=chance.random() < 0.8, left=left))
        waited = waits(views)
        progress = [wait for wait in waited if wait.kind != "exit"]
        assert [wait.view for wait in progress] == views
        for wait in progress:
            if kind_of(wait.view) == "train":
                assert (wait.kind, wait.since) == waited_for(wait.view, views)
        for seen in views:
            ends = [other.ended for other in views if other.exited and other is not seen]
            ends = [end for end in ends if not 0 < seen.ended < end]
            exits = [wait.since for wait in waited if wait.kind == "exit" and wait.view is seen]
            assert exits == [max(seen.beat, seen.started, *ends)] * bool(ends)
