"""What is asked on an agent's control socket: one answer for each question, whatever becomes of the head."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.simulation.world import StepLoop
from tests.unit.nodes.agent.test_agent import Node

from ftlaunch.nodes.agent.head.starter import READ_SIGN
from ftlaunch.nodes.agent.questions import ANSWER_SECONDS, Questions
from ftlaunch.nodes.channel.claims import NOT_OVER, Sign
from ftlaunch.system.control_socket import Client, Control


class Asked:
    """An agent, and questions on its socket."""

    def __init__(self, home: Path) -> None:
        self.node = Node(home)
        self.loop: Any = StepLoop(self.node.clock, lambda: None)
        self.control = Control(home)
        self.questions = Questions(self.loop, self.node.clock, self.control, self.node.agent, lambda sentence: None)
        self.ends: list[socket.socket] = []

    def ask(self, request: dict[str, Any]) -> socket.socket:
        """A question; returns where its answer is read."""
        ours, theirs = socket.socketpair()
        self.ends += [ours, theirs]
        ours.settimeout(60.0)
        theirs.setblocking(False)
        self.questions.ask(Client(theirs, self.loop, self.node.clock), request)
        return ours

    def sent(self) -> list[dict[str, Any]]:
        """Questions that the head was sent."""
        return [message for message in self.node.link.sent if message["do"] == "ask"]

    def close(self) -> None:
        self.questions.close()
        self.control.close()
        for end in self.ends:
            end.close()


def answer(end: socket.socket) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(end.makefile().readline())
    return told


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    made = Asked(tmp_path)
    yield made
    made.close()


def test_the_heads_answer_is_passed_back_to_who_has_asked(asked: Asked) -> None:
    asked.node.link.meet()
    first, second = asked.ask({"do": "status"}), asked.ask({"do": "nodes"})
    one, two = asked.sent()
    assert (one["request"], two["request"]) == ({"do": "status"}, {"do": "nodes"})
    for sent in (two, one):
        asked.node.link.heard({"do": "answer", "number": sent["number"], "answer": {"ok": True, "is": sent["request"]}})
    assert answer(first) == {"ok": True, "is": {"do": "status"}, "head_at": "10.0.0.1:29400"}
    assert answer(second)["is"] == {"do": "nodes"}


def test_a_head_that_does_not_answer_costs_three_seconds_and_a_late_answer_nothing(asked: Asked) -> None:
    """Taken out: ftctl waits until its own patience ends, and cannot say for whom."""
    asked.node.link.meet()
    end = asked.ask({"do": "status"})
    asked.node.clock.now += ANSWER_SECONDS + 0.1
    asked.loop.step(lambda event: None)
    told = answer(end)
    assert told["ok"] is False
    assert told["error"].startswith("the head at 10.0.0.1:29400 has not answered for 3 s: it is frozen")
    asked.node.link.heard({"do": "answer", "number": asked.sent()[0]["number"], "answer": {"ok": True}})


def test_without_a_head_the_answer_says_since_when(asked: Asked) -> None:
    asked.node.clock.now += 7.0
    assert answer(asked.ask({"do": "status"}))["error"].startswith("this node has not met a head of the job yet: none")
    asked.node.link.meet()
    asked.node.link.lose()
    asked.node.clock.now += 4.0
    assert answer(asked.ask({"do": "status"}))["error"] == (
        "there is no head of the job: none answers at 10.0.0.1:29400 for 4.0 s now (it was closed by the other side)"
    )


def test_without_a_head_a_stop_ends_this_node(asked: Asked) -> None:
    assert answer(asked.ask({"do": "stop", "why": "ftctl stop"}))["ok"]
    assert asked.node.said == ["ftctl stop: it had not joined the job yet"]
    assert asked.node.agent.over


def test_more_than_sixteen_questions_at_once_are_refused(asked: Asked) -> None:
    asked.node.link.meet()
    for _ in range(16):
        asked.ask({"do": "status"})
    assert "16 other questions are waiting" in answer(asked.ask({"do": "status"}))["error"]
    assert len(asked.sent()) == 16


def test_an_agent_that_ends_says_so(asked: Asked) -> None:
    asked.node.link.meet()
    end = asked.ask({"do": "status"})
    asked.questions.close()
    assert answer(end)["error"] == "the agent of this node has ended"


# --- what an agent tells where the head's terminal is another ------------------------------------------------------


def test_an_agent_without_the_head_says_where_it_takes_part_and_why_it_ends(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.agent.beside_head = False
    node.train()
    node.link.heard({"do": "spawn", "attempt": 1, "place": {"node": 1, "nodes": 2}, "resume": []})
    node.link.heard({"do": "done", "code": 75, "keep": 0})
    assert node.said == [
        "joined: the head at 10.0.0.1:29400 speaks for the job",
        "this is node 1 of 2",
        "the job is over, says the head at 10.0.0.1:29400: exit code 75",
    ]


def test_a_checkpoint_dir_of_its_own_beside_a_shared_run_dir_ends_the_agent_before_it_has_ranks(tmp_path: Path) -> None:
    """Taken out: it writes its part of a checkpoint where nobody looks for it."""
    node = Node(tmp_path)
    (tmp_path / "run/checkpoints/.shared").unlink()
    node.link.meet()
    node.live(0.1)
    node.answer_search()
    node.live(0.1)
    assert node.agent.code == 2
    assert node.said[-1] == (
        f"cannot take part: {tmp_path}/run/checkpoints is not shared with the node of the head at 10.0.0.1:29400, and"
        " the run dir is: give a `checkpoint_dir` that all nodes share, or the address of a store (s3://BUCKET/PREFIX)"
    )
    assert node.link.names() == ["hello", "unfit"]


def test_a_node_with_a_run_dir_of_its_own_says_so_and_replaces_no_head(tmp_path: Path) -> None:
    """Taken out (`may_replace_head`): it starts a second head in its own run dir once the first one is silent."""
    node = Node(tmp_path)
    (tmp_path / "run/.shared").unlink()
    (tmp_path / "run/checkpoints/.shared").unlink()
    (tmp_path / "run/events.jsonl").write_text("a line\n")
    node.link.meet()
    node.live(0.1)
    node.answer_search()
    node.live(0.1)
    (ready,) = [message for message in node.link.sent if "apart" in message]
    assert ready["apart"] == ["run_dir", "checkpoint_dir"]
    assert ready["journal"] == [7, hashlib.sha256(b"a line\n").hexdigest()]
    node.link.lose()
    node.orders.clear()
    node.search.start_head()
    for _ in range(20):
        assert set(node.orders) <= {READ_SIGN}, "it only reads what may be there"
        node.answer_search(Sign(9, "10.0.0.2", 29400, "another machine", 1, 1, 0))  # one that stands still
        node.live(1.0)


def test_a_sign_that_stands_still_in_a_run_dir_of_its_own_is_not_followed(tmp_path: Path) -> None:
    """Taken out (`_is_sign_of_this_job`): it ends with the exit code of another job, or goes where nobody is."""
    for over in (7, NOT_OVER):
        home = tmp_path / str(over)
        home.mkdir()
        node = Node(home)
        (home / "run/.shared").unlink()
        (home / "run/checkpoints/.shared").unlink()
        old = Sign(9, "10.0.0.2", 29400, "another machine", 1, 1, 0, over)
        node.link.meet()
        node.live(0.1)
        for _ in range(4):
            node.answer_search(old)
            node.live(1.0)
        assert node.link.names() == ["hello", "ready"], "it has found out that the run dir is its own"
        node.link.lose()
        node.answer_search(old)
        node.live(0.1)
        assert node.agent.code is None
        assert node.link.went_to is None


def test_while_storage_does_not_answer_nobody_is_said_to_have_a_run_dir_of_his_own(tmp_path: Path) -> None:
    """Found by a simulated story: another head had left its word, of which this node could not know yet."""
    node = Node(tmp_path)
    (tmp_path / "run/.shared").write_text("another head's")
    node.link.meet()
    node.live(60.0)
    assert node.agent.code is None
    assert node.link.names() == ["hello"]
    for count in range(2):  # it lives: its sign changes
        newer = Sign(9, "10.0.0.2", 29400, "another machine", 1, 1, count)
        node.answer_search(newer)
        node.live(2.0)
    assert node.agent.code is None, "it goes to that head"
    assert node.link.went_to == ("10.0.0.2", 29400)


def test_a_token_that_is_refused_again_and_again_is_another(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.link.broken_off = 7
    node.live(1.0)
    assert not node.agent.over, "a head that begins or ends may break off, too"
    node.link.broken_off = 8
    node.live(1.0)
    assert node.agent.code == 2
    assert node.said == [
        f"cannot take part: the head at 10.0.0.1:29400 does not accept this node's token (the file `token` in"
        f" {tmp_path}/run): give all nodes the same FTLAUNCH_TOKEN, or a run dir that they share, or, where only you"
        " can reach their ports, `--rdzv-conf auth=none`"
    ]
