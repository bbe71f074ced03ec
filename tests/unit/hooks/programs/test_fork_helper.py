"""A helper of the fork server: how it takes an order."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from threading import Thread

import pytest

from ftlaunch_hooks.programs.fork_helper import receive_order

Link = tuple[socket.socket, socket.socket]


@pytest.fixture
def link() -> Iterator[Link]:
    supervisor, helper = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with supervisor, helper:
        yield supervisor, helper


def test_an_order_that_another_helper_has_taken_is_not_waited_for(link: Link) -> None:
    """Taken out: with socket.recv_fds() the helper waits for the next order, deaf to the end of its time."""
    supervisor, helper = link
    told: list[object] = []
    thread = Thread(target=lambda: told.append(receive_order(helper)))
    thread.start()
    thread.join(60)
    waits = thread.is_alive()
    supervisor.close()  # ends a wait
    thread.join()
    assert not waits
    assert told == [None]


def test_an_order_brings_two_descriptors(link: Link) -> None:
    supervisor, helper = link
    with open(os.devnull) as order, open(os.devnull) as gate:
        socket.send_fds(supervisor, [b"fork"], [order.fileno(), gate.fileno()])
        received = receive_order(helper)
        assert received is not None
        assert [os.path.sameopenfile(one, given.fileno()) for one, given in zip(received, (order, gate), strict=True)]
    for one in received:
        os.close(one)


def test_a_supervisor_that_is_gone_brings_none(link: Link) -> None:
    supervisor, helper = link
    supervisor.close()
    assert receive_order(helper) == []
