"""Who comes to the endpoint is sent on to the head that was elected elsewhere, as long as that one is there."""

from __future__ import annotations

from typing import Any

from ftlaunch.nodes.agent.head.signpost import WAIT_SECONDS, Signpost

ELSEWHERE = {"do": "elsewhere", "address": "10.0.0.2", "port": 4000, "term": 2}
HELLO = {
    "do": "hello", "job": "j", "host": "h", "rank": -1, "probe": 1, "port": 2, "held": [], "slots": {}, "lineage": "",
    "running": {}, "facts": {}, "wall": 0.0, "warnings": [], "topology": "t", "copier": {},
}  # fmt: skip
SENT_ON = {"do": "elsewhere", "address": "10.0.0.2", "port": 4000}


class Peer:
    """A connection that notes what is sent."""

    on_message: Any
    on_end: Any

    def __init__(self, signpost: Signpost) -> None:
        self.sent: list[Any] = []
        self.closed = False
        connection: Any = self
        signpost.accept(connection)

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def close(self) -> None:
        self.closed = True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_nodes_that_come_before_and_after_the_elected_head_are_sent_on() -> None:
    signpost = Signpost(Clock())
    early = Peer(signpost)
    early.on_message(HELLO)
    assert early.sent == []
    Peer(signpost).on_message(ELSEWHERE)
    assert early.sent == [SENT_ON]
    late = Peer(signpost)
    late.on_message(HELLO)
    assert late.sent == [SENT_ON]
    assert signpost.where == ("10.0.0.2", 4000)


def test_without_an_elected_head_it_is_soon_over() -> None:
    clock = Clock()
    signpost = Signpost(clock)
    assert not signpost.over
    clock.now = WAIT_SECONDS
    assert signpost.over
    assert signpost.where is None


def test_it_is_over_soon_after_the_elected_head_is_gone() -> None:
    clock = Clock()
    signpost = Signpost(clock)
    head = Peer(signpost)
    head.on_message(ELSEWHERE)
    assert signpost.over, "the one that waits for this goes on"
    signpost.is_over_once_told = False
    clock.now = 1e6
    assert not signpost.over
    head.on_end("closed")
    assert not signpost.over
    clock.now += 10.0
    assert signpost.over


def test_another_elected_head_takes_the_place_of_the_first() -> None:
    clock = Clock()
    signpost = Signpost(clock)
    signpost.is_over_once_told = False
    first, second = Peer(signpost), Peer(signpost)
    first.on_message(ELSEWHERE)
    second.on_message({**ELSEWHERE, "address": "10.0.0.3"})
    first.on_end("closed")
    clock.now = 1e6
    assert not signpost.over
    assert signpost.where == ("10.0.0.3", 4000)


def test_a_signal_to_stop_ends_it_at_once() -> None:
    signpost = Signpost(Clock())
    signpost.is_over_once_told = False
    Peer(signpost).on_message(ELSEWHERE)
    assert not signpost.over
    signpost.end()
    assert signpost.over


def test_what_is_no_message_ends_the_connection() -> None:
    peer = Peer(Signpost(Clock()))
    peer.on_message({"do": "hello"})
    assert peer.closed
