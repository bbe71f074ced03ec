"""Lets the ranks agree in their pages, at each boundary with a snapshot, which replicated tensors are really the same.

The ranks of each node agree among themselves, because the node's memory holds all replicated tensors. For a tensor that
a group of the job's ranks holds, the ranks of the node that are in the group agree. For a DTensor whose shards several
ranks hold each (hybrid sharding, or tensors that tensor parallelism replicates), the ranks of the node that are in the
mesh agree: the holders of each shard must hold the same, and all these ranks come to one answer.

One rank saves a tensor for all only if every rank holds the tensor with the same values. Otherwise two things could go
wrong. The rank that should save the tensor may not hold it (an optimizer that splits its work between the ranks), and
the tensor would be in no snapshot. Or the snapshot would be a mosaic of several ranks' values (ranks that train by
themselves between two averagings of their parameters), a state that no rank was ever in.

A boundary with a snapshot is a round. In each round every rank writes two digests for each bucket into its page. A
bucket has the replicated tensors of some attached objects and of a group of ranks. The first digest is of the tensors'
keys, shapes, dtypes and owners, the second of a sample of their values (value_samples.py). A rank that holds tensors of
a bucket waits for the other ranks of the group, and all of them read the same words. Buckets with equal digests are
agreed for this boundary. All other tensors every rank saves as its own. Ranks under DistributedDataParallel have just
met in the backward pass, so that the wait is short.

Once the values of a bucket have differed, its tensors are each rank's own for the rest of the attempt: ranks whose
parameters are averaged now and then are alike after each averaging, and the files of the slots would be made anew each
time. No rank waits once it was told to leave.

The Collector calls a ReplicaAgreement in the thread that trains.
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

_ROUNDS = 2
"""number of rounds in a page: the present and the one before"""
_ENTRY = REPLICAS.count // _ROUNDS
"""words of a round: step + 1, a digest of each bucket's tensors, a digest of each bucket's values"""
_BUCKETS = (_ENTRY - 1) // 2
_ALIVE_CHECK_SECONDS = 0.2
"""time between two checks whether the awaited ranks are alive"""

Digests = tuple[int, ...]
"""a digest for each bucket; 0 for a bucket of which this rank holds nothing"""
_EMPTY: Digests = (0,) * _BUCKETS


Group = tuple[int, ...] | tuple[tuple[int, ...], ...]
"""the ranks of the job that should hold the same: ranks (none for all ranks), or the holders of each shard"""


class Replica(NamedTuple):
    """A replicated tensor, or shard, as one rank holds it."""

    part: str
    """name of the attached object that the tensor belongs to"""
    owner: int
    """place of the rank that saves the tensor among the node's ranks"""
    dtype: str
    shape: tuple[int, ...]
    """shape of the tensor or shard"""
    group: Group = ()


Held = Mapping[str, Replica]
"""replicas by key"""


class ReplicaAgreement:
    """The replicas that one rank holds, and the replicas on which all ranks have agreed."""

    def __init__(
        self, place: int, peers: Sequence[Page], parts: Iterable[str],
        groups: Mapping[Group, Sequence[Collection[int]]] | None = None,
    ) -> None:  # fmt: skip
        """Begin without an agreement.

        Args:
            place: place of this rank among the node's ranks.
            peers: pages of the node's ranks.
            parts: names of the attached objects.
            groups: the groups of this rank, as replicas name them, each with the places of its ranks on the node: one
                collection for all, or one for the holders of each shard. To agree, all ranks of a group must have it at
                the same position.
        """
        self.agreed: Held = {}
        """the replicas on which all ranks have agreed; another object after each change"""
        self._place = place
        self._page = peers[place]
        self._peers = peers
        self._buckets, self._holders = _lay_out(sorted(parts), groups or {(): [range(len(peers))]})
        self._members = [set[int]().union(*holders) for holders in self._holders]
        """places of all ranks that share a bucket, by bucket"""
        self._round = 0
        """number of rounds so far"""
        self._last_step = NONE
        """the step of the round before"""
        self._held: Held = {}
        """the replicas in that round"""
        self._structure = _EMPTY
        """digests of `_held`"""
        self._chosen = _EMPTY
        """digests of the buckets on which all ranks have agreed"""
        self._samples: list[ValueSample] = [ValueSample(()) for _ in range(_BUCKETS)]
        self._apart: set[int] = set()
        """buckets whose values have differed"""
        self._untold: set[int] = set()
        """buckets of `_apart` that `pop_differing` has not returned"""

    def meet(self, step: int, held: Held, tensors: Mapping[str, Tensor], patience_seconds: float = math.inf) -> bool:
        """Agree with all ranks, at the boundary of `step`, which replicas are the same, and set `agreed`.

        Args:
            step: the step of the boundary.
            held: the replicas of this rank; the same object as last time if nothing has changed.
            tensors: the tensors of the replicas, by the same keys.
            patience_seconds: time to wait for other ranks.

        Returns:
            False if this rank must take no snapshot of `step`: it was told to leave, or another rank does not come to
            the boundary.
        """
        if held is not self._held:
            self._held = held
            self._structure = self._digest(held)
            self._samples = self._sample(held, tensors)
        everyone = range(len(self._peers))
        deadline = time.monotonic() + patience_seconds
        # This round overwrites the older of two rounds, so that all ranks must have come to the newer of them.
        if self._last_step != NONE and not self._wait(self._last_step, everyone, deadline):
            return False
        values = [
            sample.digest() if digest else 0 for sample, digest in zip(self._samples, self._structure, strict=True)
        ]
        self._write_round(step, self._structure, tuple(map(_signed, values)))
        self._last_step = step
        holding = [bucket for bucket, digest in enumerate(self._structure) if digest]
        members = set[int]().union(*(self._members[bucket] for bucket in holding))
        if not self._wait(step, members, deadline):
            return False
        digests = {place: self._read_round(self._peers[place], step) for place in members}
        alike = [bucket for bucket in holding if self._is_alike(digests, bucket)]
        apart = {bucket for bucket in alike if not self._is_alike(digests, bucket + _BUCKETS)}
        self._untold |= apart - self._apart
        self._apart |= apart
        self._choose({bucket for bucket in alike if bucket not in self._apart})
        return True

    def is_apart(self, replica: Replica) -> bool:
        """Return whether the ranks have held different values in the bucket of a replica."""
        return self.is_known(replica) and self._bucket(replica) in self._apart

    def is_known(self, replica: Replica) -> bool:
        """Return whether the replica's object and group were named at construction, so that ranks can agree on it."""
        return (replica.part, replica.group) in self._buckets

    def pop_differing(self) -> list[str]:
        """Return the attached objects whose values have been found to differ since the last call.

        Only the first of the ranks that compare an object gets its name, to tell the user once.
        """
        mine = {bucket for bucket in self._untold if self._place == min(self._members[bucket])}
        self._untold = set()
        return sorted({replica.part for replica in self._held.values() if self._bucket(replica) in mine})

    def _choose(self, buckets: set[int]) -> None:
        """Set `agreed` to the replicas in `buckets`, unless these are the same as before."""
        chosen = tuple(digest if bucket in buckets else 0 for bucket, digest in enumerate(self._structure))
        if chosen != self._chosen:
            self._chosen = chosen
            self.agreed = {key: replica for key, replica in self._held.items() if self._bucket(replica) in buckets}

    def _sample(self, held: Held, tensors: Mapping[str, Tensor]) -> list[ValueSample]:
        """Return the sample of each bucket."""
        chosen: list[list[Tensor]] = [[] for _ in range(_BUCKETS)]
        for key in sorted(held):
            chosen[self._bucket(held[key])].append(tensors[key])
        return list(map(ValueSample, chosen))

    def _digest(self, held: Held) -> Digests:
        """Return a digest of each bucket's replicas as a signed 64-bit number; 0 for an empty bucket."""
        lines: list[list[str]] = [[] for _ in range(_BUCKETS)]
        for key in sorted(held):
            replica = held[key]
            line = f"{key} {replica.part} {replica.owner} {replica.dtype} {replica.shape}\n"
            lines[self._bucket(replica)].append(line)
        digests = [
            xxhash.xxh3_64_intdigest("".join(bucket_lines).encode()) if bucket_lines else 0 for bucket_lines in lines
        ]
        return tuple(map(_signed, digests))

    def _bucket(self, replica: Replica) -> int:
        return self._buckets[replica.part, replica.group]

    def _is_alike(self, digests: Mapping[int, Digests], index: int) -> bool:
        """Return whether all holders of a bucket have written the same digest.

        Args:
            digests: the digests of a round, by the place of the rank.
            index: index of the digest in the round: the bucket for its tensors, plus _BUCKETS for its values.
        """
        holders = self._holders[index % _BUCKETS]
        return all(len({digests[place][index] for place in places}) <= 1 for places in holders)

    # --- in the pages ---------------------------------------------------------------------------------------

    def _write_round(self, step: int, structure: Digests, values: Digests) -> None:
        """Write this rank's digests of the round of `step` into its page. The step is written last, for readers."""
        q = self._page.q
        at = REPLICAS + self._round % _ROUNDS * _ENTRY
        q[at] = 0
        for index, digest in enumerate((*structure, *values), 1):
            q[at + index] = digest
        q[at] = step + 1
        self._round += 1

    def _wait(self, step: int, places: Collection[int], deadline: float) -> bool:
        """Wait until the ranks at these places have written the round of `step`.

        Args:
            step: the step of the round.
            places: places of the ranks.
            deadline: end of the wait, in seconds of time.monotonic().

        Returns:
            False after the deadline, if this rank is told to leave, or if one of the ranks will never write the round:
            it has left its loop before the step, has written a later round, or has ended. The end is checked here
            because nobody reports it without a supervisor.
        """
        attempt = self._page.attempt
        peers = [self._peers[place] for place in places]

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

        while not wait_until(is_decided, min(deadline, time.monotonic() + _ALIVE_CHECK_SECONDS)):
            if time.monotonic() >= deadline or any(has_ended(peer) for peer in peers if not is_there(peer)):
                break
        return all(map(is_there, peers))

    @staticmethod
    def _read_round(peer: Page, step: int) -> Digests:
        """Return a rank's digests of the round of `step`, which exists: of its replicas, then of their values."""
        at = _entry(peer, step)
        assert at is not None
        return tuple(peer.q[at + 1 : at + _ENTRY])


def _entry(page: Page, step: int) -> int | None:
    """Return the offset of the round of `step` in a page, in words; None if the page does not have the round."""
    entries = range(REPLICAS, REPLICAS.end, _ENTRY)
    return next((at for at in entries if page.q[at] == step + 1), None)


def _newest_round(page: Page) -> int:
    """Return the step of a rank's newest round; -1 before its first."""
    return max(page.q[at] for at in range(REPLICAS, REPLICAS.end, _ENTRY)) - 1


def _lay_out(
    parts: Sequence[str], groups: Mapping[Group, Sequence[Collection[int]]]
) -> tuple[dict[tuple[str, Group], int], list[list[Collection[int]]]]:
    """Distribute parts and groups over the buckets.

    Parts share buckets if there are too many, and so do groups if there are more groups than buckets. A tensor is then
    agreed only if all tensors of its bucket are.

    Args:
        parts: names of the attached objects, in an order that is the same on all ranks.
        groups: the groups of this rank, as for ReplicaAgreement.

    Returns:
        The bucket of each pair of part and group; and for each bucket the sets of places whose ranks should hold the
        same.
    """
    buckets_of_group = max(_BUCKETS // len(groups), 1)
    buckets: dict[tuple[str, Group], int] = {}
    holders: list[list[Collection[int]]] = [[] for _ in range(_BUCKETS)]
    for group_number, (group, sets_of_places) in enumerate(groups.items()):
        for part_number, part in enumerate(parts):
            bucket = (group_number * buckets_of_group + part_number % buckets_of_group) % _BUCKETS
            buckets[part, group] = bucket
            holders[bucket] += [places for places in sets_of_places if places not in holders[bucket]]
    return buckets, holders


def _signed(word: int) -> int:
    """Return a word of 64 bits as a signed number, which pages hold."""
    return word - (word >> 63 << 64)
