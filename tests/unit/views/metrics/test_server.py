"""The port of the metrics beside clients that are slow."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from prometheus_client.registry import CollectorRegistry

from ftlaunch.views.metrics import server as server_module
from ftlaunch.views.metrics.server import MetricsServer, WrittenPages


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    pages = WrittenPages()
    pages.renew(CollectorRegistry(), time.monotonic())
    made = MetricsServer("127.0.0.1", 0, pages)
    yield made
    made.shutdown()
    made.server_close()


def connect(server: MetricsServer) -> socket.socket:
    place = urlsplit(server.url)
    assert place.hostname
    return socket.create_connection((place.hostname, int(place.port or 0)), timeout=60.0)


def test_slow_clients_keep_no_scrape_out(server: MetricsServer) -> None:
    """Taken out (a limit, and no more): the seventeenth client was refused for as long as the others waited."""
    slow = [connect(server) for _ in range(40)]
    for client in slow:
        client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
    for _ in range(20):
        with urllib.request.urlopen(server.url, timeout=60.0) as answer:
            assert answer.status == 200
    assert slow[0].recv(100) == b"", "the oldest were hung up on"
    for client in slow:
        client.close()


def test_a_client_that_sends_a_byte_now_and_then_is_hung_up_on(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken out (a limit for each read alone): such a client stayed for ever."""
    monkeypatch.setattr(server_module, "CLIENT_SECONDS", 0.5)
    client = connect(server)
    client.settimeout(0.02)
    deadline = time.monotonic() + 60.0
    with pytest.raises(ConnectionError):
        while time.monotonic() < deadline:
            client.sendall(b"G")
            try:
                if client.recv(100) == b"":
                    raise ConnectionError
            except TimeoutError:
                continue
    client.close()
