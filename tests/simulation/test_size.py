"""What a restart costs a job of very many nodes, counted in messages and in simulated seconds: no clock is asked."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.simulation.job import Job
from tests.support.simulation.network import End
from tests.support.simulation.story import Fault, Story

MOST_MESSAGES, MOST_SECONDS = 10, 1.0
REGULAR = ("beat", "heard")
"""sent all the time, restart or not"""


class Counter:
    """Of the messages between agents and head."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[float, str]] = []
        real = End.send

        def send(end: End, message: dict[str, Any]) -> None:
            if message["do"] not in REGULAR:
                self.sent.append((end.link.world.now, message["do"]))
            real(end, message)

        patch.setattr(End, "send", send)

    def between(self, begin: float, end: float) -> int:
        """How many were sent."""
        return sum(begin <= at <= end for at, _ in self.sent)


def when(story: list[str], words: str) -> float:
    """When a line was said first."""
    return next(float(line.split()[0]) for line in story if words in line)


@pytest.mark.parametrize(
    ("nodes", "ranks_each"),
    [(30, 2), pytest.param(1000, 1, marks=pytest.mark.slow), pytest.param(500, 8, marks=pytest.mark.slow)],
)
def test_a_restart_of_many_nodes(nodes: int, ranks_each: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()  # thousands of pages, each with a descriptor, of stories that this process has simulated before
    counter = Counter(monkeypatch)
    fault = Fault(4.0, "rank", nodes // 2)
    job = Job(Story(seed=1, nodes=nodes, steps=12, step=0.5, faults=(fault,)), tmp_path, ranks_each=ranks_each)
    job.run()
    story = job.world.story
    failed, resumed = when(story, "restarting now"), when(story, "resumed at step")
    found = re.search(r"resumed at step \d+ from memory, 0 steps lost", "\n".join(story))
    assert found, "\n".join(line for line in story if "head:" in line)
    messages = counter.between(failed - 0.5, resumed) / nodes
    print(f"{nodes} nodes of {ranks_each} ranks: {resumed - failed:.3f} simulated s, {messages:.1f} messages a node")
    assert messages <= MOST_MESSAGES
    assert resumed - failed <= MOST_SECONDS
