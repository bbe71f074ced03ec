"""How often nodes say that they live: the head of a large job hears no more of that than it can take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.fakes.clock import Clock

from ftlaunch.common.bulkheads import Bulkheads
from ftlaunch.nodes.agent.node.node_ranks import AgentRanks, AgentSurroundings
from ftlaunch.nodes.cluster.beat_pace import (
    SHORTEST_SECONDS,
    beat_seconds,
    delay_seconds,
    gather_seconds,
    hurried_seconds,
)
from ftlaunch.spec.resolve import resolve


@pytest.mark.parametrize("nodes", [2, 3, 16, 20])
def test_few_nodes_speak_ten_times_a_second(nodes: int) -> None:
    assert beat_seconds(nodes, 2.0) == SHORTEST_SECONDS
    assert delay_seconds(beat_seconds(nodes, 2.0)) == 0.0, "steps are announced as before"


@pytest.mark.parametrize("nodes", [64, 128, 200])
def test_the_beats_of_many_nodes_together_are_limited(nodes: int) -> None:
    assert nodes / beat_seconds(nodes, 2.0) == pytest.approx(200)


@pytest.mark.parametrize("nodes", [2, 2048, 100_000])
@pytest.mark.parametrize("timeout", [0.25, 2.0, 60.0])
def test_a_node_that_lives_is_heard_twice_within_the_timeout(nodes: int, timeout: float) -> None:
    assert 2 * beat_seconds(nodes, timeout) <= timeout
    assert beat_seconds(nodes, timeout) <= 5.0, "news of ranks are never older"


def test_last_words_come_sooner() -> None:
    assert hurried_seconds(beat_seconds(2, 2.0)) == pytest.approx(0.01)
    assert hurried_seconds(beat_seconds(2048, 2.0)) == pytest.approx(0.1)


class Node:
    """The ranks of a node that has none yet, and what is told of them."""

    def __init__(self, home: Path, nodes: int) -> None:
        self.clock, self.told = Clock(), list[str]()
        (home / "train.py").touch()
        flags = {"nnodes": str(nodes), "rdzv_endpoint": "127.0.0.1:1", "run_dir": str(home), "node_timeout": "2s"}
        unused: Any = None
        around = AgentSurroundings(
            spec=resolve(str(home / "train.py"), (), flags, {}),
            memory_dir=home,
            fork_server=unused,
            base_env={},
            control=home,
            marker="",
            loop=unused,
            clock=self.clock,
            helpers=unused,
            send=lambda do, **_: self.told.append(do),
            copier=None,
            bulkheads=Bulkheads(lambda failed: None),
            files=unused,
            own_files=unused,
            say=unused,
        )
        self.ranks = AgentRanks(around)

    def live(self, seconds: float) -> list[int]:
        """Look a hundred times a second; return the numbers of the beats that were sent."""
        numbers = []
        for _ in range(round(100 * seconds)):
            self.clock.now += 0.01
            number = self.ranks.poll()
            if number is not None:
                numbers.append(number)
        return numbers


@pytest.mark.parametrize(("nodes", "beats"), [(2, 100), (100, 20), (2048, 10)])
def test_an_agent_keeps_the_pace(nodes: int, beats: int, tmp_path: Path) -> None:
    node = Node(tmp_path, nodes)
    numbers = node.live(10.0)
    assert beats * 0.9 <= len(numbers) <= beats * 1.05
    assert node.told == ["beat"] * len(numbers)
    assert numbers == list(range(1, len(numbers) + 1)), "a lease counts from the sending of a beat, and of no other"


def test_another_head_hears_of_a_node_at_once(tmp_path: Path) -> None:
    node = Node(tmp_path, 2048)
    node.live(1.5)
    assert node.live(0.02) == []
    node.ranks.resend_all_words()
    assert len(node.live(0.02)) == 1


@pytest.mark.parametrize("nodes", [128, 2048])
def test_of_many_nodes_several_beats_are_handled_in_one_turn(nodes: int) -> None:
    assert gather_seconds(nodes) * nodes / beat_seconds(nodes, 10.0) >= 2
    assert gather_seconds(16) == 0.0, "of few nodes each message is handled at once"
