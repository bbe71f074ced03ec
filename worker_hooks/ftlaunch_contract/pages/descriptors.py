"""Descriptors for attributes of a page that are one word each: reading one is a load, setting one is a store.

Each descriptor is made from its row of the table in words.py. A class whose name begins with `Read` has no setter: a
method of the page writes its word, together with others.
"""

from __future__ import annotations

import enum
from typing import Generic, Protocol, TypeVar

from ftlaunch_contract.pages.words import Words

Kind = TypeVar("Kind", bound=enum.IntEnum | enum.IntFlag)


class Mapped(Protocol):
    """A page as the descriptors see it."""

    q: memoryview[int]
    """the page's words as signed integers"""
    d: memoryview[float]
    """the same words as doubles"""


class _Word:
    def __init__(self, row: Words) -> None:
        self._at = int(row)  # an exact int is a faster index than a subclass of it
        self.__doc__ = row.meaning


class ReadInt(_Word):
    """A whole number."""

    def __get__(self, page: Mapped, owner: object = None) -> int:
        return page.q[self._at]


class IntWord(ReadInt):
    """A whole number that is set by itself."""

    def __set__(self, page: Mapped, value: int) -> None:
        page.q[self._at] = value


class ReadEnum(_Word, Generic[Kind]):
    """A member of an enumeration."""

    def __init__(self, row: Words, kind: type[Kind]) -> None:
        super().__init__(row)
        self._kind = kind

    def __get__(self, page: Mapped, owner: object = None) -> Kind:
        return self._kind(page.q[self._at])


class BoolWord(_Word):
    """Yes (1) or no (0)."""

    def __get__(self, page: Mapped, owner: object = None) -> bool:
        return page.q[self._at] != 0

    def __set__(self, page: Mapped, value: bool) -> None:
        page.q[self._at] = int(value)


class SecondsWord(_Word):
    """Seconds, kept as whole nanoseconds."""

    def __get__(self, page: Mapped, owner: object = None) -> float:
        return page.q[self._at] / 1e9

    def __set__(self, page: Mapped, seconds: float) -> None:
        page.q[self._at] = int(seconds * 1e9)


class FloatWord(_Word):
    """A double."""

    def __get__(self, page: Mapped, owner: object = None) -> float:
        return page.d[self._at]

    def __set__(self, page: Mapped, value: float) -> None:
        page.d[self._at] = value
