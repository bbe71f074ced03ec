"""What the loop calls, and in which order."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.fakes.clock import BEGIN, Clock, JumpingSelector

from ftlaunch.engine.event_loop import EventLoop


class Handler:
    """Notes what it is called for, and is over after so many looks."""

    def __init__(self, clock: Clock, looks: int, every: float = 10.0) -> None:
        self.clock, self.left, self.every = clock, looks, every
        self.calls: list[tuple[str, float]] = []

    def note(self, what: str) -> Callable[[], None]:
        return lambda: self.calls.append((what, self.clock() - BEGIN))

    def take(self, event: str) -> None:
        self.note(f"took {event}")()

    def look(self) -> None:
        self.left -= 1
        self.note("looked")()

    def next_look(self) -> float:
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
