"""The names in what a `for` goes through."""

from __future__ import annotations

import sys
from typing import Any

from ftlaunch_hooks.observe.unsaved.loop_source import names_in, source_of

seen: list[list[str]] = []


def note() -> None:
    frame = sys._getframe(1)
    seen.append(source_of(frame.f_code, frame.f_lasti))


def loops(self: Any, data: Any, limit: int) -> None:
    for epoch in range(limit):
        str(epoch)
        for number, one in enumerate(zip(data.part, self.all.of_them(limit)[epoch:], strict=False), start=3):
            note()
            str((number, one))
    while limit:
        limit -= 1
        note()
    for _ in [1]:
        note()


class Of:
    """Something with parts."""

    part = (1,)

    @property
    def all(self) -> Of:
        return self

    def of_them(self, count: int) -> list[int]:
        return [1] * count


def test_the_innermost_for_around_a_place() -> None:
    seen.clear()
    loops(Of(), Of(), 1)
    first, second, third = seen
    assert first == ["enumerate", "zip", "data.part", "self.all.of_them", "limit", "epoch"]
    assert second == third == []


def test_all_names_of_a_function() -> None:
    assert {"note", "self.all.of_them", "data.part"} <= set(names_in(loops.__code__))
