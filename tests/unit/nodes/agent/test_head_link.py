"""A connection to the head for which a system call fails is tried again, as any that fails."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

import pytest

from ftlaunch.nodes.agent.head_link import HeadLink


class Loop:
    """Calls what is due when the test says so; its descriptors are never ready."""

    def __init__(self) -> None:
        self.due: dict[Any, Callable[[], None]] = {}
        self.can_register = True

    def register(self, fd: int, handler: Callable[[], None]) -> None:
        """Accept a descriptor, unless the test has the kernel run out of memory."""
        if not self.can_register:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

    def unregister(self, fd: int) -> None:
        """Do nothing: no descriptor is ever ready."""

    def watch_writes(self, fd: int, handler: Callable[[], None] | None) -> None:
        """Do nothing: no descriptor is ever ready."""

    def call_at(self, when: float, name: Any, handler: Callable[[], None]) -> None:
        """Keep a timer until the test calls `call_due`."""
        self.due[name] = handler

    def cancel(self, name: Any) -> None:
        """Forget a timer."""
        self.due.pop(name, None)

    def call_due(self) -> None:
        """Let the time come for all that waits, but for deadlines."""
        for name in [name for name in self.due if "deadline" not in name]:
            self.due.pop(name)()


def refuse(*_: object, **__: object) -> Any:
    raise OSError(errno.EMFILE, "Too many open files")


def link_of(loop: Loop, host: str) -> HeadLink:
    return HeadLink(loop, lambda: 0.0, (host, 9), b"token", lambda _: None, lambda: None, lambda: None, 2.0)


@pytest.mark.parametrize("host", ["127.0.0.1", "no.such.host"])
def test_without_a_descriptor_it_is_tried_again(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken out: no timer is left, and the agent waits for its head for ever."""
    loop = Loop()
    with monkeypatch.context() as context:
        context.setattr(socket, "socket", refuse)
        context.setattr("os.eventfd", refuse)
        link = link_of(loop, host)
        assert "Too many open files" in link.why
    assert loop.due
    loop.call_due()
    assert any("deadline" in name for name in loop.due) or "no answer yet" in link.why
    link.close()


def test_a_connection_that_cannot_be_waited_for_ends_and_is_tried_again() -> None:
    loop = Loop()
    loop.can_register = False
    link = link_of(loop, "127.0.0.1")
    loop.call_due()
    assert "Cannot allocate memory" in link.why
    assert loop.due
    link.close()
