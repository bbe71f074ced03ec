"""A free port is none that the kernel gives to others by itself, and nobody listens there."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from ftlaunch.system.ports import free_port


def test_a_free_port_lies_outside_the_range_from_which_the_kernel_gives_ports() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    found = {free_port("127.0.0.1") for _ in range(50)}
    with socket.socket() as given:
        given.bind(("127.0.0.1", 0))
        assert first <= given.getsockname()[1] <= last
    assert all(10_000 <= port < 30_000 and not first <= port <= last for port in found)
    assert len(found) > 1, "jobs that start at one moment would take the same port"


def test_a_port_at_which_something_listens_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = free_port("127.0.0.1")
    with socket.socket() as other:
        other.bind(("127.0.0.1", taken))
        other.listen()
        other_one = taken + 1 if taken < 29_999 else taken - 1
        monkeypatch.setattr("random.sample", lambda _ports, _count: [taken, other_one])
        assert free_port("127.0.0.1") == other_one


def test_an_address_of_another_machine_has_no_port_here() -> None:
    with pytest.raises(OSError, match="Cannot assign requested address") as refused:
        free_port("192.0.2.1")
    assert refused.value.errno == errno.EADDRNOTAVAIL
