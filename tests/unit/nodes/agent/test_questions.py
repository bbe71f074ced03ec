"""What is asked on an agent's control socket: one answer for each question, whatever becomes of the head."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.simulation.world import StepLoop
from tests.unit.nodes.agent.test_agent import Node

from ftlaunch.nodes.agent.questions import ANSWER_SECONDS, Questions
from ftlaunch.nodes.channel.claims import Sign
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


def test_a_run_dir_that_is_not_shared_ends_the_agent_before_it_has_ranks(tmp_path: Path) -> None:
    """Taken out: it writes its part of a checkpoint where nobody looks for it."""
    node = Node(tmp_path)
    (tmp_path / "run/.shared").unlink()
    node.link.meet()
    node.live(6.0)
    node.look_at_storage()
    node.live(0.1)
    assert node.agent.code == 2
    assert node.said[-1] == (
        f"cannot take part: {tmp_path}/run is not shared with the node of the head at 10.0.0.1:29400: the word that the"
        " head has left there is not to be seen here"
    )
    assert node.link.names() == ["hello", "unfit"]


def test_while_storage_does_not_answer_nobody_is_said_to_have_a_run_dir_of_his_own(tmp_path: Path) -> None:
    """Found by a simulated story: another head had left its word, of which this node could not know yet."""
    node = Node(tmp_path)
    (tmp_path / "run/.shared").write_text("another head's")
    node.link.meet()
    node.live(60.0)
    assert node.agent.code is None
    assert "unfit" not in node.link.names()
    newer = Sign(9, "10.0.0.2", 29400, "another machine", 1, 1, 0)
    node.search.on_answer({"sign": vars(newer)})
    node.live(0.1)
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
        f" {tmp_path}/run): all nodes must share that run dir, or be given the same FTLAUNCH_TOKEN"
    ]
