"""The control socket, with clients as they should not be."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import select
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import wait_for

from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.system.control_socket import (
    MOST_CLIENTS,
    PATIENCE_SECONDS,
    SOCKET,
    Client,
    Control,
    ControlServer,
    ask,
)


@pytest.fixture
def control() -> Iterator[Control]:
    with tempfile.TemporaryDirectory(prefix="ft") as directory:  # tmp_path may be too long for a socket
        control = Control(Path(directory))
        yield control
        control.close()
        assert not (Path(directory) / SOCKET).exists()


@pytest.fixture
def loop() -> Iterator[EventLoop[None]]:
    made = EventLoop[None](time.monotonic)
    yield made
    made.close()


def accepted(control: Control, loop: EventLoop[None]) -> Client | None:
    """A client that has connected."""
    connection = control.accept()
    return None if connection is None else Client(connection, loop, time.monotonic)


def dial(control: Control) -> socket.socket:
    """A client's end of a connection; receiving times out."""
    near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    near.settimeout(60.0)
    near.connect(str(control.path))
    return near


def connect(control: Control, loop: EventLoop[None]) -> tuple[socket.socket, Client]:
    """Both ends of a connection."""
    near = dial(control)
    far = accepted(control, loop)
    assert far is not None
    return near, far


def test_only_the_owner_may_connect(control: Control) -> None:
    mode = os.stat(control.path).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_a_socket_left_by_a_killed_supervisor_is_replaced(control: Control) -> None:
    assert control.path.exists()
    successor = Control(control.path.parent)
    near = dial(successor)
    assert control.accept() is None
    connection = successor.accept()
    assert connection is not None
    connection.close()
    near.close()
    successor.close()


def test_nobody_there_is_no_client(control: Control) -> None:
    assert control.accept() is None


def test_ask_and_answer(control: Control, loop: EventLoop[None]) -> None:
    replies: list[Any] = []
    asking = threading.Thread(target=lambda: replies.append(ask(control.path, {"do": "status", "ü": [1]}, 30.0)))
    asking.start()
    client = wait_for(lambda: accepted(control, loop), "the client")
    request = wait_for(client.request, "the request")
    assert request == {"do": "status", "ü": [1]}
    client.answer({"ok": True, "state": "läuft"})
    asking.join(60.0)
    assert replies == [{"ok": True, "state": "läuft"}]


def test_a_slow_client_is_heard_when_its_line_is_whole(control: Control, loop: EventLoop[None]) -> None:
    near, far = connect(control, loop)
    assert far.request() is None
    *begin, last = b'{"do": "stop"}\n'
    for byte in begin:
        near.sendall(bytes([byte]))
        assert far.request() is None
    near.sendall(bytes([last]))
    assert far.request() == {"do": "stop"}
    near.close()
    far.close()


def test_what_comes_after_the_first_line_is_not_heard(control: Control, loop: EventLoop[None]) -> None:
    near, far = connect(control, loop)
    near.sendall(b'{"do": "stop"}\n{"do": "start"}\n')
    assert far.request() == {"do": "stop"}
    far.answer({"ok": True})
    assert json.loads(near.recv(100)) == {"ok": True}
    near.close()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\n", b"GET / HTTP/1.0\r\n", b"\xff\xfe\n", b"[]\n", b"null\n", b'"stop"\n', b"{\n", b"\0" * 100 + b"\n",
        b"x" * 100_000,  # talks and talks, and never ends its line
        b"[" * 4000 + b"\n",  # deeper than the parser goes
    ],
)  # fmt: skip
def test_nonsense_is_an_error_of_that_client_only(control: Control, loop: EventLoop[None], nonsense: bytes) -> None:
    near, far = connect(control, loop)
    talking = threading.Thread(target=_send, args=(near, nonsense))
    talking.start()
    with pytest.raises((ValueError, ConnectionError)):
        wait_for(far.request, "an error")
    far.close()
    talking.join(60.0)
    assert not talking.is_alive()
    near.close()
    test_what_comes_after_the_first_line_is_not_heard(control, loop)


def _send(near: socket.socket, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # hung up on, as it should be
        near.sendall(data)


def test_a_client_that_leaves_is_an_error(control: Control, loop: EventLoop[None]) -> None:
    near, far = connect(control, loop)
    near.sendall(b'{"do": ')
    assert far.request() is None
    near.close()
    with pytest.raises(ConnectionError):
        far.request()
    far.close()


def test_a_client_that_leaves_before_its_answer_is_hung_up_on(control: Control, loop: EventLoop[None]) -> None:
    near, far = connect(control, loop)
    hung_up: list[Client] = []
    far.on_close = lambda: hung_up.append(far)
    near.close()
    far.answer({"ok": True})
    assert hung_up == [far]


def test_ask_says_what_is_wrong(control: Control, loop: EventLoop[None], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ask(tmp_path / "none", {})
    with pytest.raises(TimeoutError):
        ask(control.path, {"do": "status"}, timeout=0.05)  # nobody answers
    answering = threading.Thread(target=lambda: wait_for(lambda: accepted(control, loop), "the client").answer({}))
    control.accept()  # the one above
    answering.start()
    assert ask(control.path, {"do": "status"}, timeout=60.0) == {}
    answering.join(60.0)
    control.close()
    with pytest.raises((FileNotFoundError, ConnectionError)):
        ask(control.path, {"do": "status"})


# --- served in the event loop ----------------------------------------------------------------------------------


class Served:
    """A server in a loop whose clock the test sets, in the thread of the test."""

    def __init__(self, control: Control) -> None:
        self.now, self.reply, self.errors = 0.0, {"ok": True}, list[OSError]()
        self.loop = EventLoop[None](lambda: self.now)
        self._until: Callable[[], object] = lambda: True
        ControlServer(
            control, self.loop, lambda: self.now, lambda client, request: client.answer(self.reply), self.errors.append
        )

    def run(self, until: Callable[[], object]) -> None:
        """Turn the loop until a condition holds."""
        deadline = time.monotonic() + 60

        class Turns:
            def handle(self, event: None) -> None: ...
            def poll(self) -> None: ...
            def next_poll_at(turns) -> float:
                return self.now + 0.01

            def fail(self, error: Exception) -> None:
                raise error

            @property
            def over(self) -> bool:
                assert time.monotonic() < deadline
                return bool(until())

        self.loop.run(Turns())

    def turn(self) -> None:
        """Turn the loop a few times."""
        turns = self.loop.turn
        self.run(lambda: self.loop.turn > turns + 5)


def received(near: socket.socket) -> bytes:
    """All that the other end has sent until it hung up."""
    blocks = []
    while block := near.recv(1 << 16):
        blocks.append(block)
    return b"".join(blocks)


def test_an_answer_longer_than_any_buffer_arrives_whole(control: Control) -> None:
    """Taken out (one send): half a JSON beyond 200,000 bytes."""
    served = Served(control)
    served.reply = {"long": "x" * 10_000_000}
    told: list[Any] = []
    asking = threading.Thread(target=lambda: told.append(ask(control.path, {"do": "status"}, 30.0)))
    asking.start()
    served.run(lambda: told)
    asking.join(60.0)
    assert told == [served.reply]


def test_a_client_that_does_not_take_its_answer_is_hung_up_on(control: Control) -> None:
    served = Served(control)
    served.reply = {"long": "x" * 10_000_000}
    near = dial(control)
    near.sendall(b'{"do": "status"}\n')
    served.run(lambda: select.select([near], [], [], 0)[0])
    served.now += PATIENCE_SECONDS + 0.1
    served.turn()
    assert len(received(near)) < 10_000_000
    near.close()


def test_clients_that_connect_and_wait_keep_nobody_out(control: Control) -> None:
    served = Served(control)
    idle = []
    for _ in range(MOST_CLIENTS + 5):
        idle.append(dial(control))
        served.run(lambda: not is_waiting(control))
    for near in idle[:5]:
        assert received(near) == b"", "the oldest were hung up on for newer ones"
    idle[-1].sendall(b'{"do": "status"}\n')
    last = threading.Thread(target=received, args=(idle[-1],))
    last.start()
    served.run(lambda: not last.is_alive())
    served.now += PATIENCE_SECONDS + 0.1
    served.turn()
    for near in idle[5:-1]:
        assert received(near) == b"", "all were hung up on"
    for near in idle:
        near.close()


def is_waiting(control: Control) -> bool:
    """Whether a connection has not been accepted yet."""
    poll = select.poll()
    poll.register(control.fd, select.POLLIN)
    return bool(poll.poll(0))


def test_without_a_descriptor_a_client_waits_and_the_loop_rests(control: Control) -> None:
    """Taken out: EMFILE ended the job; not accepting for a moment keeps the loop from turning all the time."""
    served = Served(control)
    near = dial(control)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (control.fd, limits[1]))
    try:
        served.run(lambda: served.errors)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [error.errno for error in served.errors] == [errno.EMFILE]
    near.sendall(b'{"do": "status"}\n')
    served.turn()
    assert len(served.errors) == 1
    served.now += 1.1
    answers: list[bytes] = []
    reading = threading.Thread(target=lambda: answers.append(received(near)))
    reading.start()
    served.run(lambda: answers)
    assert json.loads(answers[0]) == {"ok": True}
    near.close()


@pytest.mark.parametrize("line", [b"", b'{"do": "status"}\n'], ids=["without a newline", "after a request"])
def test_a_client_that_sends_a_gigabyte_is_hung_up_on_after_little_of_it(control: Control, line: bytes) -> None:
    """Taken out (a request of any length): a gigabyte in the memory of the supervisor."""
    served, sent = Served(control), [0]
    near = dial(control)

    def talk() -> None:
        block = b"x" * (1 << 16)
        with contextlib.suppress(ConnectionError):
            near.sendall(line)
            while sent[0] < 1 << 30:
                sent[0] += near.send(block)

    talking = threading.Thread(target=talk)
    talking.start()
    served.run(lambda: not talking.is_alive())
    assert sent[0] < 4 << 20, "what the buffer of a socket takes"
    near.close()
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(ask(control.path, {"do": "status"}, 30.0)))
    asking.start()
    served.run(lambda: answers)
    asking.join(60.0)
    assert answers == [{"ok": True}]
