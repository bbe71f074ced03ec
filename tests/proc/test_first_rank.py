"""Ranks on other nodes begin once rank 0's port listens, or after a while."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from ftlaunch_hooks.programs import first_rank
from ftlaunch_hooks.programs.first_rank import await_first_rank


@pytest.fixture
def store() -> Iterator[socket.socket]:
    """Has a port, and does not listen yet."""
    with socket.socket() as store:
        store.bind(("127.0.0.1", 0))
        yield store


def env(store: socket.socket, first: int, address: str = "127.0.0.1") -> dict[str, str]:
    port = str(store.getsockname()[1])
    return {"FTLAUNCH_NODE_RANKS": f"{first}:2", "MASTER_ADDR": address, "MASTER_PORT": port}


def test_a_rank_on_another_node_begins_once_the_port_listens(
    store: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(first_rank, "PATIENCE_SECONDS", 30.0)
    listening = threading.Event()

    def listen() -> None:
        store.listen()
        listening.set()

    later = threading.Timer(0.05, listen)
    later.start()
    await_first_rank(env(store, 2))
    store.settimeout(60.0)
    connection, _ = store.accept()
    assert connection.recv(1) == b"", "it says nothing there"
    connection.close()
    later.join()
    assert listening.is_set()


def test_nobody_waits_for_ever(store: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_rank, "PATIENCE_SECONDS", 0.1)
    tried: list[float] = []

    def connect(*_: object, timeout: float) -> socket.socket:
        tried.append(timeout)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    await_first_rank(env(store, 2))
    assert tried
    assert tried == sorted(tried, reverse=True), "what is left of the patience shrinks"
    assert 0 < tried[-1] <= tried[0] <= 0.1


@pytest.mark.parametrize(("first", "address"), [(0, "127.0.0.1"), (2, "localhost"), (2, "")])
def test_nobody_asks_on_the_node_of_rank_0_nor_by_a_name(store: socket.socket, first: int, address: str) -> None:
    store.listen()
    store.settimeout(0)
    await_first_rank(env(store, first, address))
    await_first_rank({})
    with pytest.raises(BlockingIOError):
        store.accept()
