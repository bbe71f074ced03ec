"""What is sent to systemd, on a real socket; and what logind does to whom."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path

import pytest

from ftlaunch.system.systemd import READY, ServiceManager, logout_warning


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as opened:
        opened.bind(str(tmp_path / "notify"))
        yield opened


class Timers:
    """Keeps what is to be called."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[[], None]]] = []

    def call_at(self, when: float, name: Hashable, handler: Callable[[], None]) -> None:
        self.set.append((when, handler))


def said(listener: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(listener.recv(4096).decode())
        except BlockingIOError:
            return found


def test_what_is_told_arrives_and_the_variables_are_gone(listener: socket.socket) -> None:
    environ = {
        "NOTIFY_SOCKET": listener.getsockname(),
        "WATCHDOG_USEC": "3000000",
        "WATCHDOG_PID": str(os.getpid()),
        "A": "b",
    }
    manager, timers = ServiceManager(environ), Timers()
    assert environ == {"A": "b"}
    manager.notify(READY)
    manager.notify_status("one\nREADY=0 " + "x" * 999)
    manager.show_life(timers)
    (when, handler) = timers.set[0]
    handler()
    assert [text[:20] for text in said(listener)] == ["READY=1", "STATUS=one READY=0 x", "WATCHDOG=1", "WATCHDOG=1"]
    assert timers.set[1][0] >= when


def test_an_abstract_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(f"\0ftlaunch-test-{os.getpid()}")
        ServiceManager({"NOTIFY_SOCKET": f"@ftlaunch-test-{os.getpid()}"}).notify(READY)
        assert opened.recv(99) == b"READY=1"


@pytest.mark.parametrize("environ", [
    {}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:3"}, {"NOTIFY_SOCKET": "/nowhere/notify"},
    {"WATCHDOG_USEC": "1000000"}, {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
])  # fmt: skip
def test_where_nobody_listens_nothing_happens(environ: dict[str, str]) -> None:
    manager, timers = ServiceManager(environ), Timers()
    manager.notify(READY)
    manager.show_life(timers)
    assert timers.set == []


def test_who_loses_memory_at_the_last_logout(tmp_path: Path) -> None:
    """A user whom logind knows, and who does not linger; system users keep theirs."""
    assert logout_warning(54321, tmp_path) == ""
    for uid in (54321, 0):
        (tmp_path / f"run/systemd/users/{uid}").mkdir(parents=True)
    assert "`loginctl enable-linger` keeps it" in logout_warning(54321, tmp_path)
    assert logout_warning(0, tmp_path) == ""
    (tmp_path / "var/lib/systemd/linger").mkdir(parents=True)
    (tmp_path / "var/lib/systemd/linger/54321").touch()
    assert logout_warning(54321, tmp_path) == ""
