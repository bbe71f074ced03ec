"""The ranks of a node: what their agent tells a head that it meets while they end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import DEADLINE

from ftlaunch.agent.node.node_ranks import AgentRanks, AgentSurroundings
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.ranks.fork_client import Warm
from ftlaunch.spec.nodes.placement import on_one_node
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch_contract.protocol import Resume


class Looking:
    """Runs the loop until the ranks have gone."""

    def __init__(self, ranks: AgentRanks) -> None:
        self._ranks, self._deadline = ranks, time.monotonic() + DEADLINE

    def take(self, event: object) -> None:
        """Nothing is posted."""

    def look(self) -> None:
        """See what has ended."""
        assert time.monotonic() < self._deadline, "the ranks did not end"
        self._ranks.look()

    def next_look(self) -> float:
        """Soon."""
        return time.monotonic() + 0.01

    @property
    def over(self) -> bool:
        """Whether none is left."""
        return self._ranks.cleared


@pytest.fixture
def loop() -> Iterator[EventLoop[Any]]:
    found = EventLoop[Any](time.monotonic)
    yield found
    found.close()


def test_ranks_that_were_killed_here_are_not_offered_to_a_head_while_they_end(
    tmp_path: Path, loop: EventLoop[Any]
) -> None:
    """Taken out: a head takes them up, and what their agent did is told as a kill from outside."""
    script = tmp_path / "sleeps.py"
    script.write_text("import time\ntime.sleep(600)\n")
    flags = {"nproc_per_node": "2", "warm": "no", "run_dir": str(tmp_path)}
    spec, helpers, told = resolve(str(script), (), flags, {}), HelperProcesses(), list[str]()
    warm = Warm(helpers, spec, {}, tmp_path / "warm.log", lambda *_, **__: None)
    around = spec, tmp_path, warm, dict(os.environ), tmp_path / "control", "NO=MARK", loop, time.monotonic, helpers
    ranks = AgentRanks(AgentSurroundings(*around, lambda name, **_: told.append(name), None))
    place = asdict(on_one_node(2, "127.0.0.1", 1))
    ranks.spawn({"attempt": 0, "place": place, "resume": [int(Resume.FRESH), -1, 10, 0, -1], "lineage": "run:0/1"})
    runs = ranks.running()
    ranks.kill()
    ends = ranks.running()
    loop.run(Looking(ranks))
    assert runs["killed"] is False
    assert ends == {**runs, "killed": True}, "nobody has looked at their ends yet"
    assert not ranks.running()
    assert told.count("exit") == 2
    assert told[-1] == "gone"
