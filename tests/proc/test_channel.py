"""Channels over real sockets: how they begin, what they carry, and how each end is seen."""

from __future__ import annotations

import contextlib
import http.server
import os
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.channels import HEAD, HERE, Place, is_readable, python

from ftlaunch.nodes.channel import listener as listener_module
from ftlaunch.nodes.channel import stream as stream_module
from ftlaunch.nodes.channel.framing import LONGEST_MESSAGE
from ftlaunch.nodes.channel.listener import MOST_STRANGERS, Listener
from ftlaunch.nodes.channel.stream import MOST_QUEUED, format_endpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.close()


@pytest.fixture
def head() -> Iterator[subprocess.Popen[str]]:
    """A head in a process of its own."""
    head = subprocess.Popen(python(HEAD), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert head.stdout is not None
    with head:
        yield head
        head.kill()


def port_of(head: subprocess.Popen[str]) -> int:
    assert head.stdout is not None
    return int(head.stdout.readline())


def socket_to(peer: str) -> socket.socket:
    """Return a copy of this process's socket that is connected to `peer`."""
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor, and what is no socket or not connected
            if stat.S_ISSOCK(os.fstat(int(entry)).st_mode):
                copy = socket.socket(fileno=os.dup(int(entry)))
                if copy.family == socket.AF_INET and format_endpoint(*copy.getpeername()) == peer:
                    return copy
                copy.close()
    pytest.fail(f"nothing is connected to {peer}")


@pytest.mark.parametrize("address", [HERE, "::1"])
def test_messages_go_both_ways_once_both_are_ready(place: Place, address: str) -> None:
    try:
        listener = place.listen(address)
    except OSError as error:
        pytest.skip(f"cannot listen at {address}: {error}")
    near = place.connect(listener.port, address)
    near.connection.send({"hello": "early"})
    place.until(lambda: place.accepted and near.was_ready, "both")
    far = place.accepted[0]
    assert near.connection.ready and far.connection.ready and far.was_ready == near.was_ready == 1
    assert far.connection.peer.startswith("127.0.0.1:" if address == HERE else "[::1]:")
    near.connection.send({"beat": 1, "ü": [None, 1.5]})
    far.connection.send({"plan": "x" * 3_000_000})
    place.until(lambda: len(far.received) == 2 and near.received, "the messages")
    assert far.received == [{"hello": "early"}, {"beat": 1, "ü": [None, 1.5]}]
    assert near.received == [{"plan": "x" * 3_000_000}]
    assert place.said == near.ends == far.ends == []


def test_the_kernel_watches_both_ends(place: Place) -> None:
    for end in place.pair():
        with socket_to(end.connection.peer) as connection:
            tcp = socket.IPPROTO_TCP
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            kinds = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            assert [connection.getsockopt(tcp, kind) for kind in kinds] == [1, 1, 2, 2000]
            assert connection.getsockopt(tcp, socket.TCP_NODELAY) == 1


def test_it_waits_for_a_machine_that_stands_still_as_long_as_it_is_told(place: Place) -> None:
    for end in place.pair(silence_seconds=9.0):
        with socket_to(end.connection.peer) as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 9000


def test_many_agents_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is dropped for another while it has had no chance to answer; without FAIR_CHANCE_SECONDS most are."""
    monkeypatch.setattr(listener_module, "FAIR_CHANCE_SECONDS", 60.0)
    listener = place.listen()
    agents = Place()  # with a loop of its own, which stands still while the head accepts
    ends = [agents.connect(listener.port) for _ in range(200)]
    place.until(lambda: place.paused or place.said, "more agents than may wait")
    assert len(place.strangers) == MOST_STRANGERS

    def all_ready() -> bool:
        agents.turn()
        return len(place.accepted) == 200 and all(end.was_ready for end in ends)

    place.until(all_ready, "all agents")
    agents.close()
    assert place.said == []


def test_an_end_is_told_once_with_what_was_sent_before_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without _read_out the error of the second send was the end, and the last message was lost."""
    near, far = place.pair()
    monkeypatch.setattr(stream_module, "CHUNK", 64)  # more than one is there to be read
    far.connection.send({"done": 0, "why": "x" * 500})
    far.connection.close()
    near.connection.send({"beat": 1})  # into a connection that the other side has closed
    near.connection.send({"beat": 2})
    place.until(lambda: near.ends, "the end")
    assert near.received == [{"done": 0, "why": "x" * 500}]
    assert near.ends == [f"the connection to {near.connection.peer} has ended: it was closed by the other side"]
    assert not near.connection.ready
    near.connection.send({"beat": 3})
    near.connection.close()
    assert far.ends == []
    assert len(near.ends) == 1


def test_the_end_of_a_peers_process_is_seen_without_waiting(place: Place, head: subprocess.Popen[str]) -> None:
    near = place.connect(port_of(head), silence_seconds=3600.0)  # no time limit may be what notices it
    place.until(lambda: near.was_ready, "the head")
    head.kill()
    place.until(lambda: near.ends, "the end of the head")
    assert "has ended: " in near.ends[0]


def test_a_stopped_peer_does_not_block_send_and_the_queue_is_bounded(place: Place, head: subprocess.Popen[str]) -> None:
    near = place.connect(port_of(head), silence_seconds=3600.0)  # a send that blocked would not return
    place.until(lambda: near.was_ready, "the head")
    assert head.stdout is not None and head.stdout.readline() == "accepted\n"
    os.kill(head.pid, signal.SIGSTOP)
    message = {"state": "x" * (1 << 20)}
    sent = 0
    while near.connection.ready and sent < 200:
        near.connection.send(message)
        sent += 1
    assert sent > MOST_QUEUED >> 20
    assert near.ends == [], "nothing is told from within send"
    place.until(lambda: near.ends, "the end")
    assert f"bytes wait for {near.connection.peer}, {MOST_QUEUED} may" in near.ends[0]
    near.connection.send(message)


def test_the_queue_is_bounded_before_the_handshake_too(place: Place) -> None:
    with socket.create_server((HERE, 0)) as silent:
        near = place.connect(silent.getsockname()[1])
        for _ in range(20):
            near.connection.send({"state": "x" * (1 << 20)})
        place.until(lambda: near.ends, "the end")
        assert f"{MOST_QUEUED} may" in near.ends[0]


def test_a_message_that_no_peer_would_take_is_not_sent(place: Place) -> None:
    near, far = place.pair()
    with pytest.raises(ValueError, match=f"{LONGEST_MESSAGE} are allowed"):
        near.connection.send({"plan": "x" * LONGEST_MESSAGE})
    with pytest.raises(ValueError, match="not JSON compliant"):
        near.connection.send({"loss": float("nan")})
    near.connection.send({"beat": 1})
    place.until(lambda: far.received, "what follows")


def test_other_versions_say_so_on_both_sides(place: Place) -> None:
    listener = place.listen(version="1")
    near = place.connect(listener.port, version="2")
    place.until(lambda: near.ends and place.said, "the end")
    assert near.ends == [f"cannot talk to {near.connection.peer}: it runs ftlaunch protocol 1, this is 2"]
    assert place.said[0].endswith("it runs ftlaunch protocol 2, this is 1")
    assert place.accepted == [] and not near.was_ready


def test_a_port_that_is_taken(place: Place) -> None:
    listener = place.listen()
    with pytest.raises(OSError, match="Address already in use"):
        Listener(place.loop, time.monotonic, HERE, listener.port, b"", lambda _: None, place.said.append)


@pytest.mark.parametrize("address", ["localhost", "node-1", "10.1", ""])
def test_a_name_is_refused(place: Place, address: str) -> None:
    with pytest.raises(ValueError, match="does not appear to be an IPv4 or IPv6 address"):
        place.connect(4711, address)
    with pytest.raises(ValueError, match="does not appear to be an IPv4 or IPv6 address"):
        place.listen(address)


def test_a_port_where_nobody_listens(place: Place) -> None:
    with socket.socket() as free:
        free.bind((HERE, 0))  # bound and not listening: nobody else takes it
        near = place.connect(free.getsockname()[1])
        assert near.ends == []
        place.until(lambda: near.ends, "the refusal")
    assert near.ends == [f"cannot connect to {near.connection.peer}: Connection refused"]


def test_what_cannot_be_reached_ends_later_too(place: Place) -> None:
    near = place.connect(4711, "fe80::1%nointerface")
    assert near.ends == []
    place.until(lambda: near.ends, "the end")
    assert near.ends[0].startswith("cannot connect to [fe80::1%nointerface]:4711: ")


def test_a_web_server(place: Place) -> None:
    with http.server.ThreadingHTTPServer((HERE, 0), http.server.BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        near = place.connect(server.server_address[1], within=1.0)
        place.until(lambda: near.ends, "the end")
        server.shutdown()
        thread.join()
    assert near.ends[0].startswith(f"cannot talk to {near.connection.peer}: ")
    assert not near.was_ready


def test_a_listener_that_never_answers(place: Place) -> None:
    with socket.create_server((HERE, 0)) as silent:
        near = place.connect(silent.getsockname()[1], within=0.2)
        place.until(lambda: near.ends, "the deadline")
    assert near.ends[0].endswith("it has said nothing for 0.2 s: another program listens there, or a head is frozen")


def test_an_echo(place: Place) -> None:
    with socket.create_server((HERE, 0)) as server:
        near = place.connect(server.getsockname()[1])
        place.until(lambda: is_readable(server), "the connection")
        echo, _ = server.accept()
        with echo:
            place.until(lambda: is_readable(echo), "the challenge")
            echo.sendall(echo.recv(4096))
            place.until(lambda: near.ends, "the end")
    assert near.ends[0].endswith("it sends back what it was sent")


def test_closing_before_the_end_is_told(place: Place) -> None:
    with socket.socket() as free:
        free.bind((HERE, 0))
        near = place.connect(free.getsockname()[1])
        near.connection.close()
        other = place.connect(free.getsockname()[1])
        place.until(lambda: other.ends, "the other's refusal")
    assert near.ends == []
