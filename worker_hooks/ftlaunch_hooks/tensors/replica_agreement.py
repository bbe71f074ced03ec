"""Which replicated tensors all ranks hold alike: the ranks agree on it in their pages, boundary by boundary.

The ranks of each node agree among themselves: "all ranks" are the node's, and its memory holds all that is replicated.
Of a tensor that a group of the job's ranks holds alike, they are those of the node that are in the group. Of a DTensor
of which several ranks hold each shard (hybrid sharding, what tensor parallelism replicates) they are those that are in
its mesh: they agree where the holders of each shard hold the same, and all of them come to one answer.

A tensor is saved by one rank for all only where every rank holds it, and holds the same values. Otherwise the rank that
was to save it may be one that does not hold it (an optimizer that splits its work between the ranks), and the tensor
would be in no snapshot; or the snapshot would be a mosaic of what several ranks hold (ranks that train by themselves
between two averagings of their parameters), a state that no rank was ever in.

At each boundary with a snapshot (a round) every rank writes two digests for each bucket (attached objects, and a group
of ranks) into its page: of the keys, shapes, dtypes and owners of its replicated tensors, and of a sample of their
values (value_samples.py). A rank that holds any waits for those with which it is to hold them, and all of these read
the same words. What they hold alike is agreed for this boundary; all else every rank saves as its own. Ranks under
DistributedDataParallel have just met in the backward pass, so the wait is short.

A bucket whose values have differed once is each rank's own for the rest of the attempt: ranks whose parameters are
averaged now and then are alike after each averaging, and the files of the slots would be made anew each time. No rank
waits once it is told to leave.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import xxhash
from torch import Tensor

from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.pages.words import REPLICAS
from ftlaunch_contract.protocol import Flag, process_start_time
from ftlaunch_hooks.tensors.value_samples import ValueSample

_ROUNDS = 2  # in a page: this one and the one before
_ENTRY = REPLICAS.count // _ROUNDS  # words: step + 1, then for each bucket a digest of what is held, and of values
_BUCKETS = (_ENTRY - 1) // 2
_ROUND_SECONDS = 0.2
"""after so long it is looked whether the ranks that are waited for are alive"""

Digests = tuple[int, ...]  # one a bucket; 0: this rank holds nothing of it
_EMPTY: Digests = (0,) * _BUCKETS


Group = tuple[int, ...] | tuple[tuple[int, ...], ...]
"""Who is to hold a tensor alike, by numbers in the job: ranks (none: all ranks), or for each shard its holders."""


class Replica(NamedTuple):
    """A replicated tensor, or shard, as one rank holds it."""

    part: str  # the attached object that it belongs to
    owner: int  # the place, among the node's ranks, of the one that saves it
    dtype: str
    shape: tuple[int, ...]
    group: Group = ()


Held = Mapping[str, Replica]  # key -> replica


class ReplicaAgreement:
    """What one rank holds, and what all ranks have agreed on."""

    def __init__(
        self, place: int, peers: Sequence[Page], parts: Iterable[str],
        groups: Mapping[Group, Sequence[Collection[int]]] | None = None,
    ) -> None:  # fmt: skip
        """peers: the pages of the node's ranks; this one's is at `place`. parts: the names of the attached objects.

        groups: this rank's, as replicas name them -> the places of those of their ranks that are on the node: of the
        holders of each shard, or of all. All of these have this group as their n-th one, where they are to agree.
        """
        self.agreed: Held = {}  # another object whenever it has changed
        self._place, self._page, self._peers = place, peers[place], peers
        self._buckets, self._holders = _lay_out(sorted(parts), groups or {(): [range(len(peers))]})
        self._members = [set[int]().union(*holders) for holders in self._holders]
        self._round = 0
        self._last = NONE  # the step of the round before
        self._held: Held = {}  # in that round
        self._structure = self._chosen = _EMPTY
        self._samples: list[ValueSample] = [ValueSample(()) for _ in range(_BUCKETS)]
        self._apart: set[int] = set()  # buckets whose values have differed
        self._untold: set[int] = set()

    def meet(self, step: int, held: Held, tensors: Mapping[str, Tensor], patience_seconds: float = math.inf) -> bool:
        """Agree with all ranks, at the boundary of `step`, on what all of them hold alike, and set `agreed`.

        Args:
            step: of the boundary.
            held: what this rank holds; the same object as last time where nothing has changed.
            tensors: what is held, by the same keys.
            patience_seconds: how long another rank is waited for.

        Returns:
            False where this rank is to take no snapshot of `step`: it is told to leave, or another rank does not come
            to that boundary.
        """
        if held is not self._held:
            self._held, self._structure = held, self._digest(held)
            self._samples = self._sample(held, tensors)
        everyone, deadline = range(len(self._peers)), time.monotonic() + patience_seconds
        if self._last != NONE and not self._wait(
            self._last, everyone, deadline
        ):  # the older of two rounds is written over
            return False
        values = [sample.digest() if one else 0 for sample, one in zip(self._samples, self._structure, strict=True)]
        self._say(step, self._structure, tuple(map(_signed, values)))
        self._last = step
        holding = [bucket for bucket, one in enumerate(self._structure) if one]
        members = set[int]().union(*(self._members[bucket] for bucket in holding))
        if not self._wait(step, members, deadline):
            return False
        said = {place: self._said(self._peers[place], step) for place in members}
        alike = [bucket for bucket in holding if self._is_alike(said, bucket)]
        apart = {bucket for bucket in alike if not self._is_alike(said, bucket + _BUCKETS)}
        self._untold |= apart - self._apart
        self._apart |= apart
        self._choose({bucket for bucket in alike if bucket not in self._apart})
        return True

    def is_apart(self, replica: Replica) -> bool:
        """Whether the ranks have held other values of the bucket that a tensor is in."""
        return self.is_known(replica) and self._bucket(replica) in self._apart

    def is_known(self, replica: Replica) -> bool:
        """Whether a tensor can be agreed on: its object and its group were named when this rank began."""
        return (replica.part, replica.group) in self._buckets

    def take_apart(self) -> list[str]:
        """Return the attached objects of which other values have been found since the last call.

        Of those that compare an object, the first one alone is given it, to tell.
        """
        mine = {bucket for bucket in self._untold if self._place == min(self._members[bucket])}
        self._untold = set()
        return sorted({replica.part for replica in self._held.values() if self._bucket(replica) in mine})

    def _choose(self, buckets: set[int]) -> None:
        chosen = tuple(one if bucket in buckets else 0 for bucket, one in enumerate(self._structure))
        if chosen != self._chosen:
            self._chosen = chosen
            self.agreed = {key: replica for key, replica in self._held.items() if self._bucket(replica) in buckets}

    def _sample(self, held: Held, tensors: Mapping[str, Tensor]) -> list[ValueSample]:
        """The sample of each bucket."""
        chosen: list[list[Tensor]] = [[] for _ in range(_BUCKETS)]
        for key in sorted(held):
            chosen[self._bucket(held[key])].append(tensors[key])
        return list(map(ValueSample, chosen))

    def _digest(self, held: Held) -> Digests:
        """A signed 64-bit number for each bucket, 0 for an empty one."""
        lines: list[list[str]] = [[] for _ in range(_BUCKETS)]
        for key in sorted(held):
            replica = held[key]
            said = f"{key} {replica.part} {replica.owner} {replica.dtype} {replica.shape}\n"
            lines[self._bucket(replica)].append(said)
        found = [xxhash.xxh3_64_intdigest("".join(of_bucket).encode()) if of_bucket else 0 for of_bucket in lines]
        return tuple(map(_signed, found))

    def _bucket(self, replica: Replica) -> int:
        return self._buckets[replica.part, replica.group]

    def _is_alike(self, said: Mapping[int, Digests], place_in_entry: int) -> bool:
        """Whether all ranks that are to hold the same of what is in a bucket have said the same of it."""
        holders = self._holders[place_in_entry % _BUCKETS]
        return all(len({said[place][place_in_entry] for place in places}) <= 1 for places in holders)

    # --- in the pages ---------------------------------------------------------------------------------------

    def _say(self, step: int, structure: Digests, values: Digests) -> None:
        q, at = self._page.q, REPLICAS + self._round % _ROUNDS * _ENTRY
        q[at] = 0
        for place, one in enumerate((*structure, *values), 1):
            q[at + place] = one
        q[at] = step + 1  # last: from here on it is read
        self._round += 1

    def _wait(self, step: int, places: Collection[int], deadline: float) -> bool:
        """Wait until the ranks at these places have written the round of `step`.

        False past the deadline (monotonic seconds), when this rank is told to leave meanwhile, or when one of them will
        never write it: it has left its loop before that step, has gone on to a later round, or has ended. Without a
        supervisor nobody tells this rank of the end of another one.
        """
        attempt, peers = self._page.attempt, [self._peers[place] for place in places]

        def is_there(peer: Page) -> bool:
            return peer.attempt == attempt and _entry(peer, step) is not None

        def is_gone(peer: Page) -> bool:
            if peer.attempt != attempt or is_there(peer):
                return False
            left_before = bool(peer.flags & Flag.LOOP_LEFT) and peer.step < step
            return left_before or _newest_round(peer) > step

        def has_ended(peer: Page) -> bool:
            return peer.attempt == attempt and process_start_time(peer.pid) != peer.start_time

        def is_decided() -> bool:
            return bool(self._page.leave) or all(map(is_there, peers)) or any(map(is_gone, peers))

        while not wait_until(is_decided, min(deadline, time.monotonic() + _ROUND_SECONDS)):
            if time.monotonic() >= deadline or any(has_ended(peer) for peer in peers if not is_there(peer)):
                break
        return all(map(is_there, peers))

    @staticmethod
    def _said(peer: Page, step: int) -> Digests:
        """What a rank has written in the round of `step`, which is there: of what is held, then of its values."""
        at = _entry(peer, step)
        assert at is not None
        return tuple(peer.q[at + 1 : at + _ENTRY])


def _entry(page: Page, step: int) -> int | None:
    """Where the round of `step` stands in a page."""
    entries = range(REPLICAS, REPLICAS.end, _ENTRY)
    return next((at for at in entries if page.q[at] == step + 1), None)


def _newest_round(page: Page) -> int:
    """The step of a rank's newest round; -1 before its first."""
    return max(page.q[at] for at in range(REPLICAS, REPLICAS.end, _ENTRY)) - 1


def _lay_out(
    parts: Sequence[str], groups: Mapping[Group, Sequence[Collection[int]]]
) -> tuple[dict[tuple[str, Group], int], list[list[Collection[int]]]]:
    """(part, group) -> its bucket; and for each bucket the places of ranks that are to hold the same, set by set.

    Parts share buckets where there are too many of them, and groups do where there are more than buckets: a tensor is
    agreed then where all that is in the bucket is.
    """
    each = max(_BUCKETS // len(groups), 1)
    buckets: dict[tuple[str, Group], int] = {}
    holders: list[list[Collection[int]]] = [[] for _ in range(_BUCKETS)]
    for number, (group, places) in enumerate(groups.items()):
        for part_number, part in enumerate(parts):
            bucket = (number * each + part_number % each) % _BUCKETS
            buckets[part, group] = bucket
            holders[bucket] += [one for one in places if one not in holders[bucket]]
    return buckets, holders


def _signed(word: int) -> int:
    return word - (word >> 63 << 64)
