"""Strangers at the head's port: they learn nothing, end nothing, and cost few lines."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import struct
from collections.abc import Iterator

import pytest
from tests.support.channels import TOKEN, Place, is_readable

from ftlaunch.nodes.channel import connection as connection_module
from ftlaunch.nodes.channel import listener as listener_module
from ftlaunch.nodes.channel.framing import encode_frame
from ftlaunch.nodes.channel.handshake import NONCE, PROTOCOL, Handshake, Role
from ftlaunch.nodes.channel.listener import MOST_STRANGERS

CHALLENGE = 4 + 32  # bytes: all that a stranger ever gets


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.close()


@pytest.mark.parametrize(("ours", "theirs"), [(TOKEN, b"another"), (b"another", TOKEN), (TOKEN, b"")])
def test_another_token(place: Place, ours: bytes, theirs: bytes) -> None:
    listener = place.listen(token=ours)
    near = place.connect(listener.port, token=theirs)
    place.until(lambda: near.ends and place.said, "the end")
    assert near.ends[0].startswith(f"cannot talk to {near.connection.peer}: the handshake was broken off")
    assert place.said[0].startswith("refused a connection: cannot talk to 127.0.0.1:")
    assert place.said[0].endswith(": it does not know the token")
    assert place.accepted == [] and not near.was_ready


def test_a_listener_that_only_pretends_to_know_the_token(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = place.connect(server.getsockname()[1])
        place.until(lambda: is_readable(server), "the connection")
        false, _ = server.accept()
        with false:
            false.sendall(struct.pack(">I", 32) + bytes(32) + struct.pack(">I", 32) + bytes(32))
            place.until(lambda: near.ends, "the end")
    assert near.ends[0].endswith(": it does not know the token")


@pytest.mark.parametrize(
    ("garbage", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: head\r\n\r\n", "it sent a frame of 1195725856 bytes, 1024 are allowed"),
        (b"\xff\xff\xff\xff", "it sent a frame of 4294967295 bytes, 1024 are allowed"),
        (struct.pack(">I", 1025), "it sent a frame of 1025 bytes, 1024 are allowed"),
        (bytes(4), "it does not begin as ftlaunch does"),
        (struct.pack(">I", 32) + b"n" * 32 + struct.pack(">I", 32) + b"p" * 32, "it does not know the token"),
        (struct.pack(">I", 32) + b"n" * 10, "it was closed by the other side"),
    ],
)  # fmt: skip
def test_garbage_learns_nothing_and_ends_nothing(place: Place, garbage: bytes, why: str) -> None:
    near, far = place.pair()
    with place.stranger() as stranger:
        stranger.sendall(garbage)
        if why.startswith("it was closed"):
            stranger.shutdown(socket.SHUT_WR)
        assert len(place.hung_up(stranger)) <= CHALLENGE
    place.until(lambda: place.said, "a line")
    assert place.said[0].endswith(why)
    near.connection.send({"beat": 1})
    place.until(lambda: far.received, "a beat")
    assert near.ends == far.ends == []


def test_a_handshake_that_was_listened_to_cannot_be_played_again(place: Place) -> None:
    """Whoever has heard a true agent's words knows no token."""
    true = Handshake(Role.CLIENT, TOKEN, b"n" * NONCE)
    place.listen()
    with place.stranger() as first, place.stranger() as second:
        theirs = received(place, first, CHALLENGE)
        proof = true.receive(theirs[4:])
        assert proof is not None
        words = encode_frame(true.challenge) + encode_frame(proof)
        first.sendall(words)
        assert len(received(place, first, CHALLENGE)) == CHALLENGE, "the listener proves itself to the true one"
        second.sendall(words)
        assert len(place.hung_up(second)) == CHALLENGE
        assert place.said[0].endswith("it does not know the token")
    assert place.accepted == []


@pytest.mark.parametrize("content", [b"[1]", b"{", b'{"a":1,"a":2}', b"[" * 100_000, b'{"a":NaN}', b"\xff\xfe{"])
def test_one_that_knows_the_token_and_sends_no_object_is_left(place: Place, content: bytes) -> None:
    handshake = Handshake(Role.CLIENT, TOKEN, b"n" * NONCE)
    place.listen()
    with place.stranger() as peer:
        proof = handshake.receive(received(place, peer, CHALLENGE)[4:])
        assert proof is not None
        peer.sendall(encode_frame(handshake.challenge) + encode_frame(proof))
        handshake.receive(received(place, peer, CHALLENGE)[4:])
        sealer, _ = handshake.derive_keys()
        peer.sendall(sealer.seal(json.dumps({"protocol": PROTOCOL}).encode()))
        place.until(lambda: place.accepted, "the end of the handshake")
        [far] = place.accepted
        assert far.ends == []
        peer.sendall(sealer.seal(content))
        place.hung_up(peer)
    assert far.ends[0].startswith(f"cannot talk to {far.connection.peer}: it sent a message that cannot be read: ")
    assert far.received == []


def received(place: Place, stranger: socket.socket, count: int) -> bytes:
    """So many bytes of the listener's."""
    stranger.setblocking(False)
    heard = bytearray()

    def enough() -> bool:
        with contextlib.suppress(BlockingIOError):
            heard.extend(stranger.recv(count - len(heard)))
        return len(heard) == count

    place.until(enough, f"{count} bytes")
    return bytes(heard)


@pytest.mark.parametrize("begin", [b"", b"\0\0", struct.pack(">I", 32) + b"half a nonce"])
def test_silence_and_half_a_frame_end_at_the_deadline(
    place: Place, begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "HANDSHAKE_SECONDS", 0.2)
    place.listen()
    with place.stranger() as stranger:
        stranger.sendall(begin)
        assert len(place.hung_up(stranger)) == CHALLENGE
    assert place.said[0].endswith("it did not finish the handshake within 0.2 s")


def test_a_byte_now_and_then_wins_no_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "HANDSHAKE_SECONDS", 0.3)
    place.listen()
    to_send = iter(struct.pack(">I", 1000) + bytes(900))
    with place.stranger() as stranger:

        def refused() -> bool:
            with contextlib.suppress(OSError, StopIteration):
                stranger.send(bytes([next(to_send)]))
            return bool(place.said)

        place.until(refused, "the deadline")
    assert place.said[0].endswith("it did not finish the handshake within 0.3 s")


def test_five_hundred_strangers_and_one_true_agent(place: Place) -> None:
    near, far = place.pair()
    with contextlib.ExitStack() as strangers:
        for _ in range(300):
            strangers.enter_context(place.stranger())
        late = place.connect(place.listen_port)
        for number in range(200):
            stranger = strangers.enter_context(place.stranger())
            if number % 2:
                stranger.sendall(b"garbage")
        place.until(lambda: late.was_ready, "the true agent among strangers")
        near.connection.send({"beat": 1})
        place.until(lambda: far.received, "a beat")
        place.until(lambda: len(place.strangers) == MOST_STRANGERS or not place.paused, "the strangers")
        assert len(place.strangers) <= MOST_STRANGERS
    assert late.ends == near.ends == far.ends == []
    assert len(place.said) <= 2, "a line in ten seconds"


def test_the_oldest_stranger_makes_room(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "FAIR_CHANCE_SECONDS", 0.0)
    place.listen()
    with contextlib.ExitStack() as all_of_them:
        strangers = []
        for count in range(MOST_STRANGERS):
            strangers.append(all_of_them.enter_context(place.stranger()))
            place.until(lambda count=count: len(place.strangers) == count + 1, "a stranger")
        strangers.append(all_of_them.enter_context(place.stranger()))
        assert len(place.hung_up(strangers[0])) == CHALLENGE
        place.until(lambda: place.said, "a line")
        assert place.said[0].endswith("was dropped in the handshake for newer connections")
        assert len(place.strangers) == MOST_STRANGERS


def test_a_listener_that_closes_lets_its_agents_be(place: Place) -> None:
    near, far = place.pair()
    with place.stranger() as stranger:
        place.until(lambda: place.strangers, "a stranger")
        assert place.listener is not None
        place.listener.close()
        place.hung_up(stranger)
    far.connection.send({"plan": 1})
    place.until(lambda: near.received, "a plan")


def test_no_descriptor_left_pauses_accepting(place: Place) -> None:
    """Without the pause the listener would be readable in every turn, and the loop would never rest."""
    near, far = place.pair()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with place.stranger() as stranger:
        with contextlib.closing(socket.socket()) as free:
            lowest_free = free.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            place.until(lambda: place.said, "a line")
            near.connection.send({"beat": 1})
            place.until(lambda: far.received, "a beat meanwhile")
            turn = place.loop.turn
            assert place.paused
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        place.until(lambda: place.strangers, "the stranger, accepted in the end")
        assert place.loop.turn - turn < 100
        stranger.close()
    assert place.said == ["refused a connection: a connection cannot be accepted: Too many open files"]
