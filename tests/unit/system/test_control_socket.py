"""The control socket, with clients as they should not be."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import wait_for

from ftlaunch.system.control_socket import SOCKET, Client, Control, ask


@pytest.fixture
def control() -> Iterator[Control]:
    with tempfile.TemporaryDirectory(prefix="ft") as directory:  # tmp_path may be too long for a socket
        control = Control(Path(directory))
        yield control
        control.close()
        assert not (Path(directory) / SOCKET).exists()


def connect(control: Control) -> tuple[socket.socket, Client]:
    """Both ends of a connection; receiving times out."""
    near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    near.settimeout(10.0)
    near.connect(str(control.path))
    far = control.accept()
    assert far is not None
    return near, far


def test_only_the_owner_may_connect(control: Control) -> None:
    mode = os.stat(control.path).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_a_socket_left_by_a_killed_supervisor_is_replaced(control: Control) -> None:
    Control(control.path.parent).close()


def test_nobody_there_is_no_client(control: Control) -> None:
    assert control.accept() is None


def test_ask_and_answer(control: Control) -> None:
    replies: list[Any] = []
    asking = threading.Thread(target=lambda: replies.append(ask(control.path, {"do": "status", "ü": [1]}, 30.0)))
    asking.start()
    client = wait_for(control.accept, "the client")
    request = wait_for(client.request, "the request")
    assert request == {"do": "status", "ü": [1]}
    client.answer({"ok": True, "state": "läuft"})
    asking.join(30.0)
    assert replies == [{"ok": True, "state": "läuft"}]


def test_a_slow_client_is_heard_when_its_line_is_whole(control: Control) -> None:
    near, far = connect(control)
    assert far.request() is None
    *begin, last = b'{"do": "stop"}\n'
    for byte in begin:
        near.sendall(bytes([byte]))
        assert far.request() is None
    near.sendall(bytes([last]))
    assert far.request() == {"do": "stop"}
    near.close()
    far.close()


def test_what_comes_after_the_first_line_is_not_heard(control: Control) -> None:
    near, far = connect(control)
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
def test_nonsense_is_an_error_of_that_client_only(control: Control, nonsense: bytes) -> None:
    near, far = connect(control)
    talking = threading.Thread(target=_send, args=(near, nonsense))
    talking.start()
    with pytest.raises((ValueError, ConnectionError)):
        wait_for(far.request, "an error")
    far.close()
    talking.join(10.0)
    assert not talking.is_alive()
    near.close()
    test_what_comes_after_the_first_line_is_not_heard(control)


def _send(near: socket.socket, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # hung up on, as it should be
        near.sendall(data)


def test_a_client_that_leaves_is_an_error(control: Control) -> None:
    near, far = connect(control)
    near.sendall(b'{"do": ')
    assert far.request() is None
    near.close()
    with pytest.raises(ConnectionError):
        far.request()
    far.close()


def test_a_client_that_leaves_before_its_answer_or_never_reads_holds_up_nobody(control: Control) -> None:
    near, far = connect(control)
    near.close()
    far.answer({"ok": True})
    near, far = connect(control)
    far.answer({"long": "x" * 10_000_000})  # more than any buffer takes: cut off, not waited for
    near.close()


def test_ask_says_what_is_wrong(control: Control, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ask(tmp_path / "none", {})
    with pytest.raises(TimeoutError):
        ask(control.path, {"do": "status"}, timeout=0.05)  # nobody answers
    answering = threading.Thread(target=lambda: wait_for(control.accept, "the client").answer({}))
    control.accept()  # the one above
    answering.start()
    assert ask(control.path, {"do": "status"}, timeout=30.0) == {}
    answering.join(10.0)
    control.close()
    with pytest.raises((FileNotFoundError, ConnectionError)):
        ask(control.path, {"do": "status"})
