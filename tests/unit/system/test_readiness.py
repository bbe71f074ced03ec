"""A wait for a descriptor goes on where the kernel has no memory for it for a moment."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator
from typing import Any

import pytest

from ftlaunch.system.descriptors import is_readable


class ShortOfMemory:
    """A poll object that the kernel has no memory for, for so many calls."""

    left = 0
    failed = 0
    real = select.poll

    def __init__(self) -> None:
        self._poll = self.real()

    def register(self, descriptor: Any, events: int) -> None:
        self._poll.register(descriptor, events)

    def poll(self, milliseconds: float | None) -> Any:
        if self.left:
            type(self).left -= 1
            type(self).failed += 1
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return self._poll.poll(milliseconds)


@pytest.fixture
def poll(monkeypatch: pytest.MonkeyPatch) -> type[ShortOfMemory]:
    monkeypatch.setattr(select, "poll", ShortOfMemory)
    monkeypatch.setattr(ShortOfMemory, "failed", 0)
    return ShortOfMemory


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("seconds", [60.0, None])
def test_it_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, poll: type[ShortOfMemory], pipe: tuple[int, int], seconds: float | None
) -> None:
    """Taken out: an agent whose job is done, and that waits for its head, ends with 70."""
    monkeypatch.setattr(poll, "left", 3)
    os.write(pipe[1], b"x")
    assert is_readable(pipe[0], seconds)
    assert poll.failed == 3


def test_where_there_is_no_time_it_is_said(
    monkeypatch: pytest.MonkeyPatch, poll: type[ShortOfMemory], pipe: tuple[int, int]
) -> None:
    monkeypatch.setattr(poll, "left", 10**9)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        is_readable(pipe[0], 0.0)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        is_readable(pipe[0], 0.05)
    assert poll.failed >= 3
