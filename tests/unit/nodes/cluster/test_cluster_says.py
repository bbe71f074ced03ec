"""What nodes say goes to the mirrors and to the attempt that it is about; nonsense ends its node only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.fakes.cluster import Head, lost

from ftlaunch.nodes.cluster.mirrors.page_words import Changes
from ftlaunch_contract.pages import words
from ftlaunch_contract.pages.words import Writer


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


def test_words_come_into_the_mirrors_with_the_heartbeat_on_the_heads_clock(head: Head) -> None:
    head.running()
    page = head.page_of(3)
    page.begin(0, 77, 1)
    page.beat(5, 50 * 10**9)
    head.agents[1].beat([[3, Changes(page).collect()]], now=50.5)
    assert (head.pages[3].attempt, head.pages[3].step) == (0, 5)
    assert head.pages[3].beat_ns / 1e9 == pytest.approx(head.clock() - 0.5)
    page.close()


@pytest.mark.parametrize(
    "message",
    [
        {"do": "beat", "now": 1.0, "words": [[0, [[6, 1]]]], "noted": [], "stopped": []},  # another node's rank
        {"do": "beat", "now": 1.0, "words": [[2, [[len(Writer.RANK.value), 1]]]], "noted": [], "stopped": []},
        {"do": "beat", "now": 1.0, "words": [5], "noted": [], "stopped": []},
        {"do": "beat", "now": 1.0, "words": [], "noted": [[2]], "stopped": []},
        {"do": "beat", "now": 1.0, "words": [], "noted": [[2, "x", 0, 0]], "stopped": []},
        {"do": "beat", "now": 10**400, "words": [], "noted": [], "stopped": []},
        {"do": "beat", "now": 1e300, "words": [[2, [[int(words.BEAT), 1]]]], "noted": [], "stopped": []},
        {"do": "started", "attempt": 0, "pids": {"x": 1}, "log_from": {}},
        {"do": "started", "attempt": 0, "pids": {}, "log_from": {"2": None}},
        {"do": "dying", "attempt": 0, "ranks": {"2": "x"}},
        {"do": "exits", "attempt": 0, "codes": {"2": "x"}},
        {"do": "exits", "attempt": True, "codes": {"2": 9}},
        {"do": "nothing"},
        {},
    ],
)
def test_nonsense_loses_its_node_and_no_other(head: Head, message: dict[str, Any]) -> None:
    group = head.running()
    head.agents[1].on_message(message)
    assert head.agents[1].closed
    assert "its agent has sent" in lost(group)[2]
    assert group.living == [0, 1]
    head.agents[0].beat()


@pytest.mark.parametrize(
    "message",
    [
        {"do": "started", "pids": {"2": 5}, "log_from": {}},
        {"do": "cannot_start", "rank": 2, "why": "none"},
        {"do": "dying", "ranks": {"2": 9}},
        {"do": "exits", "codes": {"2": 0}},
        {"do": "gone", "port": 1, "slots": {}, "evidence": {}, "awaits_memory": 0},
    ],
    ids=lambda message: str(message["do"]),
)
def test_what_an_older_attempt_says_is_dropped(head: Head, message: dict[str, Any]) -> None:
    head.running()
    group = head.attempt(number=1)
    head.agents[1].on_message({**message, "attempt": 0})
    assert group.living == [0, 1, 2, 3]
    assert group.subjects("") == []
    assert group.dying() == {}
    assert not head.cluster.is_cleared()


def test_a_rank_of_another_node_is_not_ones_own(head: Head) -> None:
    group = head.running()
    head.agents[1].say("exits", attempt=0, codes={"0": 1})
    head.agents[1].say("cannot_start", attempt=0, rank=1, why="none")
    head.agents[1].say("dying", attempt=0, ranks={"0": 9})
    assert group.living == [0, 1, 2, 3]
    head.agents[0].say("dying", attempt=0, ranks={"0": 9})
    assert head.cluster.reports.read_dying() == [0]


def test_a_rank_that_cannot_be_started_ends_all_of_its_node(head: Head) -> None:
    group = head.running()
    head.agents[1].say("cannot_start", attempt=0, rank=3, why="No such file or directory")
    assert lost(group).keys() == {2, 3}
    assert "rank 3 could not be started on node 1 (here, 10.0.0.1): No such file" in lost(group)[2]
    assert not head.agents[1].closed


def test_stop_and_hurry_reach_the_job_from_any_node(head: Head) -> None:
    head.agent()
    head.agents[0].say("stop", why="SIGTERM " + 1000 * "x")
    head.agents[0].say("hurry")
    assert len(head.stops[0]) == 200
    assert head.hurried == 1


def test_all_are_told_of_the_end_and_nothing_is_said_of_their_leaving(head: Head) -> None:
    head.running()
    head.agent()
    head.cluster.end(75, keep=True)
    for agent in head.agents:
        assert agent.newest("done") == {"do": "done", "code": 75, "keep": 1}
        agent.on_end("closed")
    assert head.cluster.left == 0
    assert head.said == []
