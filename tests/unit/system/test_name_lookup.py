"""Look-ups of names that no host can have, and of a resolver that does not answer."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.waiting import wait_for

from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.nodes.channel.etcd.member import EtcdMember
from ftlaunch.system.name_lookup import NameLookup, addresses_of

STRANGE = ["a..b", "x" * 64 + ".example", "\udc80.example"]


@pytest.fixture
def loop() -> Iterator[EventLoop[None]]:
    made = EventLoop[None](time.monotonic)
    yield made
    made.close()


@pytest.fixture
def silent_resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A resolver that answers nothing until the event is set."""
    answers, true = threading.Event(), socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *args: Any, **named: Any) -> Any:
        if not named.get("flags", 0) & socket.AI_NUMERICHOST:
            assert answers.wait(60.0)
            host = "127.0.0.1"
        return true(host, port, *args, **named)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield answers
    answers.set()
    wait_for(lambda: not lookups(), "the end of the threads")


def lookups() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "name look-up"]


def turn(loop: EventLoop[None], until: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60

    class Turns:
        def handle(self, event: None) -> None: ...
        def poll(self) -> None: ...
        def next_poll_at(self) -> float:
            return time.monotonic() + 0.01

        def fail(self, error: Exception) -> None:
            raise error

        @property
        def over(self) -> bool:
            assert time.monotonic() < deadline
            return bool(until())

    loop.run(Turns())


@pytest.mark.parametrize("host", STRANGE)
def test_a_name_that_no_host_can_have_is_an_answer(loop: EventLoop[None], host: str) -> None:
    """Taken out (UnicodeError went through): the thread ended without a word, and the look-up never did."""
    with pytest.raises(OSError, match="no host can be called"):
        addresses_of(host, 1)
    told: list[tuple[list[str], str]] = []
    NameLookup(loop, host, 1, lambda addresses, why: told.append((addresses, why)))
    turn(loop, lambda: told)
    assert told == [([], f"no host can be called {host!a}")]
    with pytest.raises(OSError, match="cannot be resolved"):
        EtcdMember(host, 1, None).post("/", b"", {}, 5.0)


def test_a_cancelled_look_up_leaves_no_descriptor(loop: EventLoop[None], silent_resolver: threading.Event) -> None:
    """Taken out: a descriptor for each look-up that was given up."""
    told: list[object] = []
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        lookup = NameLookup(loop, "silent.example", 1, lambda addresses, why: told.append(addresses))
        lookup.cancel()
        lookup.cancel()
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(lookups()) == 1
    silent_resolver.set()
    wait_for(lambda: not lookups(), "the answer")
    NameLookup(loop, "silent.example", 1, lambda addresses, why: told.append(addresses))
    turn(loop, lambda: told)
    assert told == [["127.0.0.1"]]


def test_tries_while_the_resolver_is_silent_wait_for_one_answer(silent_resolver: threading.Event) -> None:
    """Taken out: a thread more for every try, ten a second for as long as the resolver is silent."""
    member = EtcdMember("silent.example", 1, None)
    for _ in range(10):
        with pytest.raises(OSError, match=r"the resolver does not answer for silent\.example"):
            member.post("/", b"", {}, 0.2)
    assert len(lookups()) == 1


def test_where_no_thread_can_be_started_that_is_the_answer(
    loop: EventLoop[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    told: list[tuple[list[str], str]] = []
    NameLookup(loop, "some.example", 1, lambda addresses, why: told.append((addresses, why)))
    turn(loop, lambda: told)
    assert told == [([], "can't start new thread")]
