"""Which replicated tensors all ranks hold: the ranks agree on it in their pages, boundary by boundary.

The ranks of each node agree among themselves: "all ranks" are the node's, and its memory holds all that is replicated.
Of a tensor that a group of the job's ranks holds alike, they are those of the node that are in the group.

A tensor is saved by one rank for all only where every rank holds it. Otherwise the rank that was to save it may be one
that does not hold it (an optimizer that splits its work between the ranks), and the tensor would be in no snapshot.

At each boundary with a snapshot (a round) every rank writes a digest of what it holds into its page: for each bucket
(attached objects, and a group of ranks) the keys, shapes, dtypes and owners of its replicated tensors. What is agreed
follows from words that all ranks read alike:

- a rank writes round k only after all ranks have written round k - 1, so every rank knows round k - 1 whole: what all
  ranks held then is agreed in round k, and where two ranks differed nothing of that bucket is;
- a rank whose own digest has changed since round k - 1 waits for all ranks' round k. Where all ranks have changed from
  one common digest to another (the first optimizer step), the new one is agreed at once.

What is not agreed every rank saves as its own. A rank that has lost a tensor which is agreed takes no snapshot in this
round; in the next round that bucket is not agreed any more. No rank waits once it is told to leave.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import xxhash

from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.pages.words import REPLICAS
from ftlaunch_contract.protocol import Flag

_ROUNDS = 2  # in a page: this one and the one before
_ENTRY = REPLICAS.count // _ROUNDS  # words: step + 1, then a digest for each bucket
_BUCKETS = _ENTRY - 1

Digests = tuple[int, ...]  # one a bucket; 0: this rank holds nothing of it
_EMPTY: Digests = (0,) * _BUCKETS


class Replica(NamedTuple):
    """A replicated tensor as one rank holds it."""

    part: str  # the attached object that it belongs to
    owner: int  # the place, among the node's ranks, of the one that saves it
    dtype: str
    shape: tuple[int, ...]
    group: tuple[int, ...] = ()  # the ranks of the job that hold it; empty: all


Held = Mapping[str, Replica]  # key -> replica


class ReplicaAgreement:
    """What one rank holds, and what all ranks have agreed on."""

    def __init__(
        self, place: int, peers: Sequence[Page], parts: Iterable[str],
        groups: Mapping[tuple[int, ...], Sequence[int]] | None = None,
    ) -> None:  # fmt: skip
        """peers: the pages of the node's ranks; this one's is at `place`. parts: the names of the attached objects.

        groups: this rank's, as replicas name them -> the places of those of their ranks that are on the node. All of
        these have this group as their n-th one, where they are to agree.
        """
        self.agreed: Held = {}  # another object whenever it has changed
        self._page, self._peers = peers[place], peers
        self._buckets, self._members = _lay_out(sorted(parts), groups or {(): range(len(peers))})
        self._round = 0
        self._last = NONE  # the step of the round before
        self._held: Held = {}  # in that round
        self._digests = self._chosen = _EMPTY

    def meet(self, step: int, held: Held) -> bool:
        """All ranks at the boundary of `step`: agree on what all of them hold, and set `agreed`.

        held: what this rank holds; the same object as last time where nothing has changed. False: this rank is to take
        no snapshot of `step`, as it is told to leave, or has lost a tensor that other ranks rely on.
        """
        now = self._digests if held is self._held else self._digest(held)
        if self._last != NONE and not self._wait(self._last):
            return False
        before = [self._said(peer, self._last) if self._last != NONE else _EMPTY for peer in self._peers]
        chosen = [one if self._alike(before, bucket) else 0 for bucket, one in enumerate(self._digests)]
        source = [self._held] * _BUCKETS
        self._say(step, now)
        if now != self._digests:
            if not self._wait(step):
                return False
            said = [self._said(peer, step) for peer in self._peers]
            for bucket, one in enumerate(now):
                if one != self._digests[bucket] and self._alike(before, bucket) and self._alike(said, bucket):
                    chosen[bucket], source[bucket] = one, held
        self._choose(tuple(chosen), source)
        self._last, self._held, self._digests = step, held, now
        return all(one == now[bucket] or self._holds(held, bucket) for bucket, one in enumerate(self._chosen) if one)

    def _choose(self, chosen: Digests, source: Sequence[Held]) -> None:
        if chosen != self._chosen:
            self._chosen = chosen
            self.agreed = {
                key: replica
                for bucket, one in enumerate(chosen)
                if one
                for key, replica in source[bucket].items()
                if self._bucket(replica) == bucket
            }

    def _holds(self, held: Held, bucket: int) -> bool:
        of_bucket = [(key, one) for key, one in self.agreed.items() if self._bucket(one) == bucket]
        return all(held.get(key) == replica for key, replica in of_bucket)

    def _digest(self, held: Held) -> Digests:
        """A signed 64-bit number for each bucket, 0 for an empty one."""
        lines: list[list[str]] = [[] for _ in range(_BUCKETS)]
        for key in sorted(held):
            replica = held[key]
            said = f"{key} {replica.part} {replica.owner} {replica.dtype} {replica.shape}\n"
            lines[self._bucket(replica)].append(said)
        found = [xxhash.xxh3_64_intdigest("".join(of_bucket).encode()) if of_bucket else 0 for of_bucket in lines]
        return tuple(one - (one >> 63 << 64) for one in found)

    def _bucket(self, replica: Replica) -> int:
        return self._buckets[replica.part, replica.group]

    def _alike(self, said: Sequence[Digests], bucket: int) -> bool:
        """Whether all ranks that are to hold what is in a bucket have said the same of it."""
        return len({said[place][bucket] for place in self._members[bucket]}) <= 1

    # --- in the pages ---------------------------------------------------------------------------------------

    def _say(self, step: int, digests: Digests) -> None:
        q, at = self._page.q, REPLICAS + self._round % _ROUNDS * _ENTRY
        q[at] = 0
        for bucket, one in enumerate(digests, 1):
            q[at + bucket] = one
        q[at] = step + 1  # last: from here on it is read
        self._round += 1

    def _wait(self, step: int) -> bool:
        """Wait until all ranks have written the round of `step`.

        False when this rank is told to leave meanwhile, or a rank has left its loop before that step.
        """
        attempt = self._page.attempt

        def ready() -> bool:
            return all(peer.attempt == attempt and _entry(peer, step) is not None for peer in self._peers)

        def gone() -> bool:
            return any(peer.flags & Flag.LOOP_LEFT and peer.step < step for peer in self._peers)

        if not ready():
            wait_until(lambda: self._page.leave or ready() or gone(), math.inf)
        return ready()

    @staticmethod
    def _said(peer: Page, step: int) -> Digests:
        """What a rank has written in the round of `step`, which is there."""
        at = _entry(peer, step)
        assert at is not None
        return tuple(peer.q[at + 1 : at + _ENTRY])


def _entry(page: Page, step: int) -> int | None:
    """Where the round of `step` stands in a page."""
    entries = range(REPLICAS, REPLICAS.end, _ENTRY)
    return next((at for at in entries if page.q[at] == step + 1), None)


def _lay_out(
    parts: Sequence[str], groups: Mapping[tuple[int, ...], Sequence[int]]
) -> tuple[dict[tuple[str, tuple[int, ...]], int], list[set[int]]]:
    """(part, group) -> its bucket; and for each bucket the places of the ranks that are to hold what is in it.

    Parts share buckets where there are too many of them, and groups do where there are more than buckets: a tensor is
    agreed then where all that is in the bucket is.
    """
    each = max(_BUCKETS // len(groups), 1)
    buckets: dict[tuple[str, tuple[int, ...]], int] = {}
    members = [set[int]() for _ in range(_BUCKETS)]
    for number, (group, places) in enumerate(groups.items()):
        for part_number, part in enumerate(parts):
            bucket = (number * each + part_number % each) % _BUCKETS
            buckets[part, group] = bucket
            members[bucket].update(places)
    return buckets, members
