"""The ranks' halves of pages, from one machine to another: which words have changed, and writing them into a mirror.

Every word of a page is whole at any moment, so its newest value is all that a mirror needs. Times are monotonic, and
every machine counts its own: the heartbeat is moved by the difference of the clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ftlaunch_contract.pages import words
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.pages.words import Writer

_COUNT = len(Writer.RANK.value)

_BEAT = int(words.BEAT)
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1

Change = tuple[int, int]
"""A word of the page, and its value."""


class Changes:
    """What has changed in one rank's half since the last look."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._before: tuple[int, ...] = ()

    def look(self) -> list[Change]:
        """The words that have changed; all of them at the first look."""
        now = tuple(self._page.q[:_COUNT])
        before, self._before = self._before, now
        if not before:
            return list(enumerate(now))
        return [(word, value) for word, value in enumerate(now) if value != before[word]] if now != before else []


def write(page: Page, changes: Iterable[Sequence[int]], ahead_ns: int) -> None:
    """Write words into a mirror. ahead_ns: how far the mirror's clock is ahead of the rank's. Raises ValueError."""
    for change in changes:
        word, value = change
        if not (isinstance(word, int) and isinstance(value, int)) or not 0 <= word < _COUNT:
            raise ValueError(f"no word of a rank's half of the page: {change!r}")
        if not _LEAST <= value <= _MOST:
            raise ValueError(f"a word of {value}")
        page.q[word] = value + ahead_ns if word == _BEAT and value else value
