"""Digests of replicated tensors in a rank's page: a ring of eight, each with its step, its part and its value.

The rank writes with `write_digest`; the supervisor reads with `read_digests` and compares the ranks. A digest that is
overwritten before the supervisor has read it is not compared. That loses nothing for good: replicas that differ go on
differing, and the same part is digested again later. Standard library only.
"""

from __future__ import annotations

from typing import NamedTuple

from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.pages.words import DIGESTS

NAMES = "replicas.json"  # in the memory directory: the names of the parts, by rank 0
_ENTRIES = DIGESTS.count // 2
_KEYS = tuple(range(int(DIGESTS), DIGESTS.end, 2))  # offsets; exact ints are faster indices than rows of the table
_TABLE_BITS = 20
_INDEX_BITS = 12


class ReplicaDigest(NamedTuple):
    """One digest of one part of the replicated tensors."""

    step: int
    part: int
    table: int  # a checksum of the list of parts; only digests with the same list can be compared
    digest: int  # 64 bits, unsigned

    @property
    def key(self) -> int:
        """Return what was digested, in one word: 31 bits of step, 12 of part, 20 of table."""
        table = self.table & (1 << _TABLE_BITS) - 1
        return self.step << _INDEX_BITS + _TABLE_BITS | self.part << _TABLE_BITS | table


def write_digest(page: Page, number: int, entry: ReplicaDigest) -> None:
    """Write the `number`-th digest of this attempt into the rank's page."""
    q = page.q
    at = DIGESTS + 2 * (number % _ENTRIES)
    q[at] = 0  # no reader takes the new digest for that of the old key
    q[at + 1] = entry.digest - (entry.digest >> 63 << 64)  # as a signed word
    q[at] = entry.key


def read_digests(page: Page) -> dict[int, int]:
    """Return the digests that are in the page now: key -> digest, as a signed word of 64 bits."""
    q = page.q
    found = {}
    for at in _KEYS:
        if key := q[at]:
            digest = q[at + 1]
            if q[at] == key:  # the entry was not overwritten meanwhile
                found[key] = digest
    return found


def step_of(key: int) -> int:
    """Return the step in a key."""
    return key >> _INDEX_BITS + _TABLE_BITS


def index_of(key: int) -> int:
    """Return the part in a key."""
    return key >> _TABLE_BITS & (1 << _INDEX_BITS) - 1
