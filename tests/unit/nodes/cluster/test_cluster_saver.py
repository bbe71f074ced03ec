"""A checkpoint of several nodes: prepared by the head, written by all, committed once; one failed part ends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.fakes.cluster import Head

from ftlaunch.nodes.cluster.cluster_saver import ClusterSaver
from ftlaunch_contract.pages.page import NONE

SAVE = {
    "do": "save", "step": 10, "why": "interval", "checkpoint_dir": "/nowhere", "prefix": "fake", "keep": 3,
    "keep_every": 0, "bandwidth": None, "abnormal": None,
}  # fmt: skip


class FakeOwn:
    """The head's own saver: one request at a time, answered when the test says so."""

    fd, pid, closed, stored = -1, 77, False, -1

    def __init__(self) -> None:
        self.pending: dict[str, Any] | None = None
        self.asked: list[str] = []
        self.hurried = 0
        self.said: list[dict[str, Any]] | None = []

    def ask(self, request: dict[str, Any]) -> None:
        """Take a request."""
        assert self.pending is None, f"asked {request['do']} while it does {self.pending}"
        self.pending = request
        self.asked.append(request["do"])

    def hurry(self) -> None:
        """Count it."""
        self.hurried += 1

    def answers(self) -> list[dict[str, Any]] | None:
        """What it has said."""
        said, self.said = self.said, [] if self.said is not None else None
        if said:
            self.pending = None
        return said

    def work(self) -> int:
        """It does nothing."""
        return 0

    def kill_if_stopped(self, now: float) -> None:
        """It is never stopped."""

    def close(self, timeout: float) -> int:
        """Gone."""
        return -9


class Job:
    """Two nodes at work that hold step 10, and the saver of their head."""

    def __init__(self, home: Path) -> None:
        self.head = Head(home)
        self.head.running()
        for rank in range(4):
            self.head.pages[rank].set_slot(rank % 2, 10)
        self.listening: dict[int, Callable[[], None]] = {}
        self.own: Any = FakeOwn()
        self.saver = self.follow(self.own)

    def follow(self, own: Any) -> ClusterSaver:
        """A saver after another."""
        self.own = own
        told: Any = self.head.pages, self.listening.__setitem__, self.listening.pop, ("run", 1)
        return ClusterSaver(own, self.head.cluster, *told, None)

    def own_says(self, **more: Any) -> None:
        """The head's saver has done what it was asked for."""
        pending = self.own.pending
        self.own.said.append({"did": pending["do"], "step": pending["step"], "why": pending["why"], **more})
        self.listening[-1]()

    def own_dies(self) -> None:
        """The head's saver is gone."""
        self.own.said = None
        self.listening[-1]()

    def node_says(self, node: int, number: int | None = None, **more: Any) -> None:
        """The saver of a node has written, or not."""
        told = self.head.agents[node].newest("saver")["request"]
        answer = {"did": "write", "step": told["step"], "number": number or told["number"], **more}
        self.head.agents[node].say("saver", answer=answer)

    def begin(self) -> None:
        """A save, up to where the nodes write."""
        self.saver.ask(dict(SAVE))
        self.own_says()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_each_node_writes_its_ranks_and_the_head_commits_once_all_have(job: Job) -> None:
    job.saver.ask(dict(SAVE))
    assert not any("saver" in agent.names() for agent in job.head.agents), "the directory is not there yet"
    job.own_says()
    for node, agent in enumerate(job.head.agents):
        told = agent.newest("saver")["request"]
        assert told["do"] == "write"
        assert told["slots"] == {str(2 * node): 0, str(2 * node + 1): 1}
        assert told["world_size"] == 4
    job.node_says(1)
    assert job.own.asked == ["prepare"]
    job.node_says(0)
    assert job.own.asked == ["prepare", "commit"]
    job.own_says(path="/nowhere/10", bytes=5)
    assert [(one["did"], one["step"], one["path"]) for one in job.saver.answers() or ()] == [
        ("save", 10, "/nowhere/10")
    ]
    assert job.saver.pending is None


def test_where_the_directory_cannot_be_made_nobody_writes(job: Job) -> None:
    job.saver.ask(dict(SAVE))
    job.own_says(error="No space left on device")
    assert not any("saver" in agent.names() for agent in job.head.agents)
    assert [one["error"] for one in job.saver.answers() or ()] == ["No space left on device"]


def fails(job: Job) -> None:
    job.node_says(1, error="No space left on device")


def goes(job: Job) -> None:
    job.head.agents[1].on_end("closed")


@pytest.mark.parametrize(
    ("what", "says"),
    [(fails, "node 1: No space left on device"), (goes, "node 1, which held a part of it, is lost")],
    ids=["fails", "goes"],
)
def test_one_part_that_is_not_written_ends_the_save(job: Job, what: Callable[[Job], None], says: str) -> None:
    """The failure is told once nothing of it is left: then the next one may be asked for."""
    job.begin()
    job.node_says(0)
    what(job)
    assert job.own.asked == ["prepare", "discard"]
    assert job.saver.pending is not None
    job.own_says()
    assert [(one["did"], one["step"], one["error"]) for one in job.saver.answers() or ()] == [("save", 10, says)]
    job.saver.ask({**SAVE, "step": 10})
    assert job.own.asked[2:] == ["prepare"]


def test_a_node_that_is_gone_before_it_could_be_asked_ends_the_save(job: Job) -> None:
    job.saver.ask(dict(SAVE))
    job.head.agents[1].on_end("closed")
    for rank in (2, 3):
        job.head.pages[rank].set_slot(0, 10)  # as where another node has taken up its memory
    job.own_says()
    assert job.own.asked == ["prepare", "discard"]


def test_a_node_that_is_gone_with_its_memory_ends_the_save(job: Job) -> None:
    """Between the request and the directory: no mirror says any more where its snapshots were."""
    job.saver.ask(dict(SAVE))
    job.head.agents[1].on_end("closed")
    assert NONE in job.head.pages[2].slot_steps()
    job.own_says()
    assert job.own.asked == ["prepare", "discard"]
    job.own_says()
    (answer,) = job.saver.answers() or ()
    assert "error" in answer


def test_a_late_answer_about_an_earlier_try_is_no_answer(job: Job) -> None:
    """Of the same step, too: the node's saver may still have been writing when another part failed."""
    job.begin()
    old = job.head.agents[1].newest("saver")["request"]["number"]
    job.node_says(0, error="full")
    job.own_says()
    job.saver.answers()
    job.begin()
    job.node_says(0)
    job.node_says(1, number=old)
    assert job.own.asked[-1] == "prepare"
    job.node_says(1)
    assert job.own.asked[-1] == "commit"


def test_a_node_that_writes_no_part_of_it_has_no_say(job: Job) -> None:
    job.head.agent()
    job.begin()
    told = job.head.agents[0].newest("saver")["request"]["number"]
    job.head.agents[2].say("saver", answer={"number": told, "error": "I am nobody"})
    job.node_says(0)
    job.node_says(0)
    job.head.agents[2].on_end("closed")
    assert job.own.asked == ["prepare"]


def test_the_end_of_the_heads_saver_is_heard_after_its_last_answer(job: Job) -> None:
    job.begin()
    job.node_says(0)
    job.node_says(1)
    job.own_says(path="/nowhere/10")
    job.own_dies()
    assert len(job.saver.answers() or ()) == 1
    assert job.saver.answers() is None, "and the descriptor says that there is more"


def test_a_saver_that_follows_a_dead_one_begins_anew(job: Job) -> None:
    job.begin()
    old = job.head.agents[0].newest("saver")["request"]["number"]
    job.own_dies()
    assert job.saver.answers() is None
    assert job.saver.close(0.0) == -9
    job.saver = job.follow(FakeOwn())
    job.begin()
    job.node_says(0, number=old)
    job.node_says(1)
    assert job.own.asked == ["prepare"]
    job.node_says(0)
    assert job.own.asked == ["prepare", "commit"]


def test_what_is_no_save_is_the_heads_savers_business(job: Job) -> None:
    job.saver.ask({"do": "find", "step": 1, "why": "", "checkpoint_dir": "/nowhere"})
    job.own_says(rejected=[])
    assert [one["did"] for one in job.saver.answers() or ()] == ["find"]


def test_a_hurry_reaches_the_nodes_that_write(job: Job) -> None:
    job.begin()
    job.node_says(0)
    job.saver.hurry()
    assert job.own.hurried == 1
    assert job.head.agents[1].newest("saver")["request"] == {"do": "hurry"}
    assert job.head.agents[0].newest("saver")["request"]["do"] == "write"
