"""What the loop calls, and in which order."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Any

from tests.support.fakes.clock import BEGIN, Clock, JumpingSelector

from ftlaunch.engine.event_loop import EventLoop


class Handler:
    """Notes what it is called for, and is over after so many looks."""

    def __init__(self, clock: Clock, looks: int, every: float = 10.0) -> None:
        self.clock, self.left, self.every = clock, looks, every
        self.calls: list[tuple[str, float]] = []

    def note(self, what: str) -> Callable[[], None]:
        return lambda: self.calls.append((what, self.clock() - BEGIN))

    def handle(self, event: str) -> None:
        self.note(f"took {event}")()

    def poll(self) -> None:
        self.left -= 1
        self.note("looked")()

    def next_poll_at(self) -> float:
        return self.clock() + self.every

    @property
    def over(self) -> bool:
        return self.left <= 0


def job(looks: int, every: float = 10.0) -> tuple[EventLoop[str], Handler, Clock]:
    clock = Clock()
    return EventLoop[str](clock, JumpingSelector(clock, 1000.0)), Handler(clock, looks, every), clock


def test_posted_events_come_before_anything_is_waited_for() -> None:
    loop, handler, _ = job(1)
    loop.post("first")
    loop.post("second")
    loop.run(handler)
    assert handler.calls == [("took first", 0.0), ("took second", 0.0), ("looked", 10.0)]


def test_timers_are_called_when_they_are_due_and_once() -> None:
    loop, handler, _ = job(4)
    loop.call_at(BEGIN + 3, "three", handler.note("three"))
    loop.post_at(BEGIN + 5, "five")
    loop.run(handler)
    assert handler.calls == [
        ("three", 3.0), ("looked", 3.0), ("looked", 5.0), ("took five", 5.0), ("looked", 15.0), ("looked", 25.0),
    ]  # fmt: skip


def test_a_timer_of_the_same_name_is_replaced_and_a_cancelled_one_is_forgotten() -> None:
    loop, handler, _ = job(2)
    loop.post_at(BEGIN + 3, "grace over")
    loop.post_at(BEGIN + 12, "grace over")
    loop.post_at(BEGIN + 4, "backoff over")
    loop.cancel("backoff over")
    loop.cancel("never armed")
    loop.run(handler)
    assert handler.calls == [("looked", 10.0), ("looked", 12.0)]


def test_turns_are_counted() -> None:
    loop, handler, _ = job(3)
    loop.run(handler)
    assert loop.turn == 3


def test_a_timer_that_another_cancels_or_moves_in_the_same_turn_is_not_called() -> None:
    loop, handler, _ = job(3)

    def first() -> None:
        handler.note("first")()
        loop.cancel("cancelled")
        loop.call_at(BEGIN + 15, "moved", handler.note("moved"))

    loop.call_at(BEGIN + 3, "first", first)
    loop.call_at(BEGIN + 3, "cancelled", handler.note("cancelled"))
    loop.call_at(BEGIN + 3, "moved", handler.note("moved too early"))
    loop.run(handler)
    assert [call for call in handler.calls if call[0] != "looked"] == [("first", 3.0), ("moved", 15.0)]


class Ready(selectors.SelectSelector):
    """Says that everything registered is readable, and writable where that is asked."""

    def select(self, timeout: float | None = None) -> list[Any]:
        return [(key, key.events) for key in self.get_map().values()]


def test_writes_are_watched_until_they_are_no_longer() -> None:
    clock = Clock()
    loop, handler = EventLoop[str](clock, Ready()), Handler(clock, 3)
    loop.register(7, handler.note("read"))

    def write() -> None:
        handler.note("written")()
        loop.watch_writes(7, None)

    loop.watch_writes(7, write)
    loop.run(handler)
    assert [what for what, _ in handler.calls] == ["read", "written", "looked", "read", "looked", "read", "looked"]


def test_what_a_handler_unregisters_is_not_called_in_the_same_turn() -> None:
    """Its number may belong to another descriptor by now. Without the check both were called."""
    clock = Clock()
    loop, handler = EventLoop[str](clock, Ready()), Handler(clock, 1)

    def replace() -> None:
        handler.note("replaced")()
        loop.unregister(8)
        loop.register(8, handler.note("the new one"))
        loop.unregister(7)

    loop.register(7, replace)
    loop.watch_writes(7, handler.note("written"))
    loop.register(8, handler.note("the old one"))
    loop.run(handler)
    assert [what for what, _ in handler.calls] == ["replaced", "looked"]


def gathering() -> tuple[EventLoop[str], Handler, list[float]]:
    """A loop that gathers for two seconds, a handler of three looks, and the pauses that the loop has made."""
    clock = Clock()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.jump(clock() + seconds)

    loop = EventLoop[str](clock, JumpingSelector(clock, 1000.0), gather_seconds=2.0, sleep=sleep)
    return loop, Handler(clock, 3), slept


def test_what_comes_within_the_time_of_gathering_is_handled_in_one_turn() -> None:
    loop, handler, slept = gathering()
    loop.call_at(BEGIN + 5, "five", handler.note("five"))
    loop.call_at(BEGIN + 5.5, "later", handler.note("later"))
    loop.run(handler)
    assert handler.calls == [("five", 5.0), ("looked", 5.0), ("later", 5.5), ("looked", 5.5), ("looked", 15.5)]
    assert slept == [2.0, 0.5, 2.0], "a timer is called when it is due, whatever is gathered"


def test_nothing_is_gathered_while_connections_come() -> None:
    """Taken out (`_gathers`): two thousand agents that come at once wait for twice as long."""
    loop, handler, slept = gathering()
    loop.call_at(BEGIN + 5, "five", lambda: loop.register(7, handler.note("read")))
    loop.call_at(BEGIN + 5.5, "later", handler.note("later"))
    loop.run(handler)
    assert handler.calls == [("looked", 5.0), ("later", 5.5), ("looked", 5.5), ("looked", 15.5)]
    assert slept == [2.0, 2.0], "there is no pause before what comes half a second after the connection"
