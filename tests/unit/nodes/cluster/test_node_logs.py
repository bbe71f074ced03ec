"""Requests for logs at the head: passed on to the node that has them, never more than can be sent, never for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.fakes.cluster import Head

from ftlaunch.nodes.cluster.log_pieces import BUSY, MOST_QUEUED


class Asking:
    """A head whose second node has a run dir of its own, and the answers to what was asked."""

    def __init__(self, home: Path) -> None:
        self.head = Head(home)
        self.head.running()
        self.node = self.head.agents[1]
        self.node.say("ready", apart=["run_dir"], journal=[0, ""])
        self.logs = self.head.cluster.logs
        self.answers: list[dict[str, Any]] = []
        (row,) = self.ask(what="nodes")["nodes"]
        self.row = row

    def ask(self, **request: Any) -> Any:
        """Ask, and return the newest answer."""
        self.logs.answer(request, self.answers.append)
        return self.answers[-1] if self.answers else None

    def read(self) -> None:
        """Ask for a piece."""
        self.ask(what="read", node=self.row["key"], attempt=0, rank=2, offset=0)

    def sent(self) -> list[dict[str, Any]]:
        """The requests that the node was sent."""
        return [message for message in self.node.received if message["do"] == "logs"]


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    return Asking(tmp_path)


def test_a_piece_is_asked_of_the_node_that_has_it(asking: Asking) -> None:
    assert (asking.row["place"], asking.row["ranks"]) == (1, [2, 3])
    asking.read()
    (message,) = asking.sent()
    assert message["request"]["rank"] == 2
    asking.node.say("logs", number=message["number"], answer={"ok": True, "data": "eA=="})
    assert asking.answers[-1]["data"] == "eA=="
    asking.node.say("logs", number=message["number"], answer={"ok": True, "data": "twice"})
    assert asking.answers[-1]["data"] == "eA==", "an answer that nobody waits for"


def test_a_node_to_which_much_waits_gets_no_piece_and_no_request(asking: Asking) -> None:
    """Taken out (either look at `queued`): a beat waits behind pieces of logs."""
    asking.node.queued = MOST_QUEUED + 1
    asking.read()
    assert asking.answers[-1] == BUSY
    assert not asking.sent()
    head = asking.head
    head.cluster.on_ask = lambda request, reply: reply({"ok": True, "data": "x" * 99})
    asking.node.say("ask", number=5, request={"do": "logs"})
    answer = asking.node.newest("answer")["answer"]
    assert answer["busy"] is True
    assert "data" not in answer


def test_so_many_requests_wait_and_each_for_so_long(asking: Asking) -> None:
    for _ in range(17):
        asking.read()
    assert [answer for answer in asking.answers if answer.get("busy")] == [BUSY]
    assert len(asking.sent()) == 16
    asking.head.clock.now += 2.1
    asking.logs.poll()
    late = [answer["error"] for answer in asking.answers if "error" in answer]
    assert len(late) == 16
    assert late[0].startswith("cannot read these logs: node 1 (here, ")
    assert late[0].endswith("has not answered for 2 s")


def test_a_node_that_is_lost_is_said(asking: Asking) -> None:
    asking.read()
    asking.node.on_end("the cable is cut")
    assert asking.answers[-1]["error"].endswith("is lost: the cable is cut")
    asking.read()
    assert asking.answers[-1]["error"].endswith("that node is lost, or has left the job")
    assert asking.ask(what="nodes")["nodes"] == []


def test_a_job_that_is_over_waits_for_those_who_follow(asking: Asking) -> None:
    """Taken out: the nodes end before their last lines were read."""
    assert not asking.logs.have_been_read()
    assert asking.ask(what="nodes")["over"] is True
    asking.head.clock.now += 1.1
    assert asking.logs.have_been_read(), "nobody asks any more"
    for _ in range(4):
        asking.ask(what="nodes")
        assert not asking.logs.have_been_read()
        asking.head.clock.now += 0.9
    asking.head.clock.now += 0.5
    asking.ask(what="nodes")
    assert asking.logs.have_been_read(), "it does not wait for ever"
