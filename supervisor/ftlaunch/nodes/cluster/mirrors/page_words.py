"""The ranks' halves of pages, from one machine to another: which words have changed, and writing them into a mirror.

Every word of a page is whole at any moment, so its newest value is all that a mirror needs. Times are monotonic, and
every machine counts its own: the heartbeat is moved by the difference of the clocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from ftlaunch_contract.pages import words
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.pages.words import Writer

_COUNT = len(Writer.RANK.value)

_BEAT = int(words.BEAT)
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1

Change = tuple[int, int] | tuple[int, int, int]
"""A word of the page, and its value; or the first of several words that have one value, the value, and how many."""


class Changes:
    """What has changed in one rank's half since the last look."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._before: tuple[int, ...] = ()

    def look(self) -> list[Change]:
        """Return the words that have changed; all of them at the first look, words of one value together."""
        now = tuple(self._page.q[:_COUNT])
        before = self._before
        self._before = now
        if not before:
            return _runs(now)
        return [(word, value) for word, value in enumerate(now) if value != before[word]] if now != before else []


def _runs(values: Sequence[int]) -> list[Change]:
    """Return all words. Most of a page is empty: two thousand nodes that begin at once would send 30 MB otherwise."""
    found: list[Change] = []
    first = 0
    for value, run in itertools.groupby(values):
        count = len(list(run))
        found.append((first, value, count))
        first += count
    return found


def write(page: Page, changes: Iterable[Sequence[int]], ahead_ns: int) -> None:
    """Write words into a mirror. ahead_ns: how far the mirror's clock is ahead of the rank's. Raises ValueError."""
    words_of_page = page.q
    for change in changes:
        if len(change) == 2:  # nearly all: the head of a large job takes a hundred thousand a second
            word, value = change
            last = word
        else:
            word, value, count = change
            last = _last_of_run(word, count)
        if not (isinstance(word, int) and isinstance(value, int)) or not 0 <= word <= last < _COUNT:
            raise ValueError(f"no word of a rank's half of the page: {change!r}")
        if not _LEAST <= value <= _MOST:
            raise ValueError(f"a word of {value}")
        for at in (word,) if word == last else range(word, last + 1):
            words_of_page[at] = value + ahead_ns if at == _BEAT and value else value


def _last_of_run(word: object, count: object) -> int:
    """Return the last of several words. Raises ValueError for what is no number of words."""
    if not (isinstance(word, int) and isinstance(count, int)) or not 1 <= count <= _COUNT:
        raise ValueError(f"no words of a rank's half of the page: {count!r} from {word!r} on")
    return word + count - 1
