"""enumerate() around batches is found and given another count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ftlaunch_hooks.passes import enumerations


class Batches(Iterator[str]):
    """Has the enumerate() around it count on, as it is asked for its first item."""

    def __init__(self) -> None:
        self._left = list("abc")
        self.found: enumerate[Any] | None = None

    def __next__(self) -> str:
        if len(self._left) == 3:
            self.found = next(iter(enumerations.find_enumerations(self, ())), None)
            if self.found is not None:
                assert enumerations.advance(self.found, 5)
        if not self._left:
            raise StopIteration
        return self._left.pop(0)


def test_this_python_can_be_given_another_count() -> None:
    assert enumerations.can_advance()


@pytest.mark.parametrize(
    ("wrapped", "numbers"),
    [
        (enumerate, [5, 6, 7]),
        (lambda one: enumerate(one, 10), [15, 16, 17]),
        (lambda one: enumerate(zip(one, "xyz", strict=True)), [5, 6, 7]),
        (lambda one: zip(one, "xyz", strict=True), ["a", "b", "c"]),
    ],
)
def test_it_counts_on(wrapped: Callable[[Any], Any], numbers: list[Any]) -> None:
    assert [number for number, _ in wrapped(Batches())] == numbers


def test_another_enumeration_is_left_alone() -> None:
    other = enumerate("uvw")
    next(other)
    assert [number for number, _ in enumerate(Batches())] == [5, 6, 7]
    assert next(other) == (1, "v")
