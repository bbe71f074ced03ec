"""A checkpoint of nodes that do not share the head's directory: the store has it, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.fakes.cluster import Head
from tests.unit.nodes.cluster.test_cluster_saver import SAVE, FakeOwn

from ftlaunch.nodes.cluster.cluster_saver import UNSHARED, ClusterSaver
from ftlaunch.nodes.cluster.head_store import HeadStore
from ftlaunch.nodes.cluster.unshared_nodes import CHECKPOINT_DIR
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch_contract.pages.page import NONE

OPENED = {"where": "file:///bucket", "term": 3, "token": "t", "newest": 5, "beside": {"seed.json": "1"}, "lives": None}
FIND = {"do": "find", "checkpoint_dir": "/nowhere"}


class Job:
    """Two nodes that hold step 10, of which the second one has a checkpoint directory of its own."""

    def __init__(self, home: Path, *, has_store: bool = True) -> None:
        self.events: list[JobEvent] = []
        self.keeper: list[tuple[dict[str, Any], Callable[[dict[str, Any]], None]]] = []
        self.asked: list[str] = []
        self.store = HeadStore("file:///bucket", OPENED, self.events.append) if has_store else None
        if self.store is not None:
            self.store.ask_keeper = self._ask_keeper
        self.head = Head(home, store=self.store)
        self.head.agent()
        self.head.agent(ready=False).say("ready", apart=[CHECKPOINT_DIR], journal=[])
        self.is_settled = self.head.cluster.is_settled
        if not self.is_settled():
            self.node_says(1)
        assert self.is_settled(), "the node's cache has the small files"
        self.head.attempt()
        self.listening: dict[int, Callable[[], None]] = {}
        for rank in range(4):
            self.head.pages[rank].set_slot(rank % 2, 10)
        self.own: Any = FakeOwn()
        pages: Any = self.head.pages
        self.saver = ClusterSaver(
            self.own,
            self.head.cluster,
            pages,
            self.listening.__setitem__,
            self.listening.pop,
            ("run", 1),
            self.store,
        )

    def _ask_keeper(self, request: dict[str, Any], on_done: Callable[[dict[str, Any]], None]) -> None:
        self.keeper.append((request, on_done))
        self.asked.append(request["do"])

    def keeper_says(self, do: str, **answer: Any) -> dict[str, Any]:
        """The keeper answers; return what it was asked."""
        request, on_done = self.keeper.pop(0)
        assert request["do"] == do
        on_done({"did": do, **answer})
        return request

    def own_says(self, do: str, **more: Any) -> dict[str, Any]:
        """The head's saver answers; return what it was asked."""
        pending = self.own.pending
        assert pending["do"] == do
        about = {name: pending[name] for name in ("step", "why") if name in pending}
        self.own.said.append({"did": do, **about, **more})
        self.listening[-1]()
        return dict(pending)

    def node_says(self, node: int, **more: Any) -> dict[str, Any]:
        """A node has done what it was asked for; return the request."""
        request = dict(self.head.agents[node].newest("saver")["request"])
        echo = {name: request[name] for name in ("number", "folder", "token") if name in request}
        did = request["do"]
        self.head.agents[node].say("saver", answer={"did": did, **echo, **more})
        return request

    def until_committing(self) -> str:
        """A save, up to where the keeper commits. Returns the folder of the store."""
        self.saver.ask(dict(SAVE))
        self.own_says("prepare")
        self.node_says(0)
        folder = str(self.node_says(1)["folder"])
        assert self.keeper_says("parts")["names"] == ["part_0000002.json", "part_0000003.json"]
        self.own_says("join", bytes=7, health={"status": "normal"})
        return folder


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_store_commits_what_the_nodes_have_uploaded(job: Job) -> None:
    folder = job.until_committing()
    assert "folder" not in job.head.agents[0].newest("saver")["request"], "it writes into the head's directory"
    commit = job.keeper_says("commit", bytes=9, seconds=0.1, deleted=[5], notes=[], newest=10)
    assert (commit["folder"], commit["step"]) == (folder, 10)
    assert job.saver.answers() == [], "the head's directory is not empty yet"
    job.own_says("discard")
    (answer,) = job.saver.answers() or ()
    assert (answer["did"], answer["step"], answer["is_stored"]) == ("save", 10, True)
    assert answer["path"] == f"file:///bucket/{folder}"
    assert job.saver.stored == 10
    (stored,) = job.events
    assert stored.fields()["steps"] == [10]
    assert stored.fields()["deleted"] == [5]


def test_what_a_failed_save_has_uploaded_is_deleted(job: Job) -> None:
    job.saver.ask(dict(SAVE))
    job.own_says("prepare")
    folder = job.node_says(1, error="no space left")["folder"]
    assert job.keeper_says("delete")["folder"] == folder
    job.own_says("discard")
    (answer,) = job.saver.answers() or ()
    assert answer["error"] == "node 1: no space left"
    job.saver.ask(dict(SAVE))
    job.own_says("prepare")
    assert job.node_says(1)["folder"] != folder, "no name is used twice"


def test_what_may_be_committed_all_the_same_is_not_deleted(job: Job) -> None:
    """Taken out: the answer to the commit was lost, and the newest step of the store loses its files."""
    job.until_committing()
    job.keeper_says("commit", error="no answer within 60 s")
    job.own_says("discard")
    (answer,) = job.saver.answers() or ()
    assert answer["error"] == "no answer within 60 s"
    assert "delete" not in job.asked


def test_a_node_that_is_lost_before_it_has_uploaded_ends_the_save(job: Job) -> None:
    job.saver.ask(dict(SAVE))
    job.own_says("prepare")
    job.head.agents[1].on_end("it has gone")
    job.keeper_says("delete")
    job.own_says("discard")
    (answer,) = job.saver.answers() or ()
    assert answer["error"] == "node 1, which held a part of it, is lost"


def test_the_step_that_a_node_cannot_use_is_refused_for_all(job: Job) -> None:
    job.saver.ask(dict(FIND))
    assert job.keeper_says("bring_newest", refused=[], newest=5)["healthy_before"] is None
    job.own_says("find", step=5, rejected=[])
    assert job.node_says(1, error="a shard does not match its checksum", damaged=True)["step"] == 5
    why = "a shard does not match its checksum"
    assert job.keeper_says("check", newest=3, refused=[{"step": 5, "why": why}])["step"] == 5
    job.keeper_says("bring_newest", refused=[], newest=3)
    job.own_says("find", step=3, rejected=[])
    assert job.saver.answers() == [], "not before the node has it"
    assert job.node_says(1)["step"] == 3
    (answer,) = job.saver.answers() or ()
    assert answer["step"] == 3
    assert [(one["step"], one["to"]) for one in answer["rejected"]] == [(5, "still in file:///bucket, and not used")]


def test_a_node_whose_disk_is_bad_takes_no_checkpoint_from_the_others(job: Job) -> None:
    """Taken out: each step of the store in turn is refused, and the job has nothing to resume from."""
    job.saver.ask(dict(FIND))
    job.keeper_says("bring_newest", refused=[], newest=5)
    job.own_says("find", step=5, rejected=[])
    job.node_says(1, error="a shard does not match its checksum", damaged=True)
    job.keeper_says("check", newest=5, refused=[])
    assert job.head.agents[1].closed
    job.keeper_says("bring", refused=[], newest=5)
    job.own_says("find", step=5, rejected=[])
    (answer,) = job.saver.answers() or ()
    assert (answer["step"], answer["rejected"]) == (5, [])


def test_a_store_that_does_not_answer_is_no_damage(job: Job) -> None:
    job.saver.ask(dict(FIND))
    job.keeper_says("bring_newest", error="no answer within 60 s")
    (answer,) = job.saver.answers() or ()
    assert (answer["did"], answer["step"], answer["error"]) == ("find", NONE, "no answer within 60 s")


def test_a_lost_node_holds_up_no_answer(job: Job) -> None:
    job.saver.ask(dict(FIND))
    job.keeper_says("bring_newest", refused=[], newest=5)
    job.own_says("find", step=5, rejected=[])
    job.head.agents[1].on_end("it has gone")
    (answer,) = job.saver.answers() or ()
    assert answer["step"] == 5


def test_all_caches_follow_when_the_job_goes_back(job: Job) -> None:
    job.saver.ask({"do": "go_back", "checkpoint_dir": "/nowhere", "step": 3, "skip": [1, 2]})
    job.own_says("go_back")
    assert job.keeper_says("put_aside", newest=3, beside={"skipped.json": "2"})["above"] == 3
    request = job.node_says(1)
    assert (request["step"], request["beside"]) == (NONE, {"skipped.json": "2"})
    (answer,) = job.saver.answers() or ()
    assert (answer["did"], answer["is_stored"]) == ("go_back", True)
    assert job.saver.stored == 3


@pytest.mark.parametrize("request_", [SAVE, FIND], ids=["save", "find"])
def test_without_a_store_it_is_refused(tmp_path: Path, request_: dict[str, Any]) -> None:
    job = Job(tmp_path, has_store=False)
    job.saver.ask(dict(request_))
    (answer,) = job.saver.answers() or ()
    assert (answer["did"], answer["error"]) == (request_["do"], UNSHARED)
    assert job.own.asked == []


def test_an_attempt_waits_until_a_nodes_cache_has_the_small_files(job: Job) -> None:
    assert job.store is not None
    job.store.ask({"do": "put_aside", "above": 3}, lambda _: None)
    job.keeper_says("put_aside", newest=3, beside={})
    assert not job.is_settled()
    assert not job.is_settled()
    asked = [message["request"]["beside"] for message in job.head.agents[1].received if message["do"] == "saver"]
    assert asked == [{"seed.json": "1"}, {}], "it is asked once for each version"
    job.node_says(1)
    assert job.is_settled()
