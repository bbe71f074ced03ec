"""Carries the ranks' halves of pages from one machine to another: finds changed words, and writes them into a mirror.

Each word of a page is whole at any moment; therefore a mirror needs only the newest value of each word. The heartbeat
is a monotonic time, which is counted differently on each machine: it is moved by the difference of the two clocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from ftlaunch_contract.pages import words
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.pages.words import Writer

_COUNT = len(Writer.RANK.value)  # words of a rank's half

_BEAT = int(words.BEAT)
_SMALLEST = -(1 << 63)  # value of a word
_LARGEST = (1 << 63) - 1

Change = tuple[int, int] | tuple[int, int, int]
"""the index of a word and its value; or the first index of several words of one value, the value, and their number"""


class Changes:
    """Finds the words of one rank's half that have changed since the last `collect`."""

    def __init__(self, page: Page) -> None:
        """Watch a page, of which nothing was sent yet."""
        self._page = page
        self._before: tuple[int, ...] = ()

    def collect(self) -> list[Change]:
        """Return the changed words; at the first call all words, with runs of one value together."""
        now = tuple(self._page.q[:_COUNT])
        before = self._before
        self._before = now
        if not before:
            return _runs(now)
        if now == before:
            return []
        return [(word, value) for word, value in enumerate(now) if value != before[word]]


def _runs(values: Sequence[int]) -> list[Change]:
    """Return all words as runs of one value.

    Most of a page is empty. Single words of two thousand nodes that begin at once would be 30 MB.
    """
    found: list[Change] = []
    first = 0
    for value, run in itertools.groupby(values):
        count = len(list(run))
        found.append((first, value, count))
        first += count
    return found


def write(page: Page, changes: Iterable[Sequence[int]], ahead_ns: int) -> None:
    """Write changed words into a mirror.

    Args:
        page: the mirror.
        changes: the changes, as received.
        ahead_ns: nanoseconds by which the clock of the mirror's machine is ahead of the rank's.

    Raises:
        ValueError: a change is malformed.
    """
    words_of_page = page.q
    for change in changes:
        if len(change) == 2:  # nearly all changes; the head of a large job takes a hundred thousand a second
            word, value = change
            last = word
        else:
            word, value, count = change
            last = _last_of_run(word, count)
        if not (isinstance(word, int) and isinstance(value, int)) or not 0 <= word <= last < _COUNT:
            raise ValueError(f"no word of a rank's half of the page: {change!r}")
        if not _SMALLEST <= value <= _LARGEST:
            raise ValueError(f"a word of {value}")
        for index in (word,) if word == last else range(word, last + 1):
            words_of_page[index] = value + ahead_ns if index == _BEAT and value else value


def _last_of_run(word: object, count: object) -> int:
    """Return the index of the last of `count` words from `word` on. Raises ValueError if one is malformed."""
    if not (isinstance(word, int) and isinstance(count, int)) or not 1 <= count <= _COUNT:
        raise ValueError(f"no words of a rank's half of the page: {count!r} from {word!r} on")
    return word + count - 1
