"""Judges what the ranks report of their losses and replicas: bad losses, and replicas that differ. Pure.

`numerics_monitor.py` reads the reports from the ranks' pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ftlaunch_contract.pages.loss_record import CALM, Bad, LossFault
from ftlaunch_contract.pages.replica_record import index_of, step_of

_HELD = 4096  # most parts of a step that are remembered, with digests that wait for other ranks' or were compared


@dataclass(frozen=True)
class NumericFault:
    """Something is wrong with the numbers of the training."""

    kind: str  # nan, spike or divergence
    act: str  # what the job asks for: warn, stop or rollback
    rank: int  # -1 if unknown
    step: int  # the bad step that is reported
    value: float | None  # loss of the step; None for a divergence
    sentence: str  # for people
    before: int  # a checkpoint is healthy if its step is less
    span: tuple[int, int] | None = None  # samples consumed before and after the bad steps; None if unknown
    part: str = ""  # name of the part of the replicas; empty for a loss


def _number(value: float) -> str:
    return f"{value:.6g}"


def _loss_sentence(rank: int, bad: Bad, first: bool) -> str:
    """Return a bad loss in words. first: the job's first of its kind in this attempt."""
    if bad.kind is LossFault.SPIKE:
        if not first:
            return f"rank {rank}: the loss is in a spike again from step {bad.newest} on ({bad.episodes} times so far)"
        return (
            f"rank {rank}: the loss is in a spike from step {bad.step} on, where it was {_number(bad.value)}"
            f" (limit {_number(bad.limit)})"
        )
    if not first:
        return f"rank {rank}: the loss of step {bad.newest} is no finite number again ({bad.episodes} times so far)"
    return f"rank {rank}: the loss of step {bad.step} is {_number(bad.value)}"


class Losses:
    """Finds the bad losses of an attempt that are news: one report for all ranks, within ten steps."""

    def __init__(self, answers: Mapping[LossFault, str]) -> None:
        """Begin with an attempt.

        Args:
            answers: what the job asks for, by kind: off, warn, stop or rollback.
        """
        self._answers = answers
        self._reported: dict[LossFault, int] = {}  # newest bad step that was reported, by kind

    def observe(self, pages: Iterable[tuple[int, Sequence[Bad]]]) -> list[NumericFault]:
        """Return what is new.

        Args:
            pages: each rank with its bad losses.
        """
        found: list[NumericFault] = []
        reports = sorted((bad.step, rank, bad) for rank, bads in pages for bad in bads)
        for _, rank, bad in reports:
            act = self._answers[bad.kind]
            before = self._reported.get(bad.kind)
            if act == "off" or (before is not None and bad.newest <= before + CALM):
                continue
            self._reported[bad.kind] = bad.newest
            found.append(
                NumericFault(
                    kind=bad.kind.name.lower(),
                    act=act,
                    rank=rank,
                    step=bad.step if before is None else bad.newest,
                    value=bad.value,
                    sentence=_loss_sentence(rank, bad, before is None),
                    before=bad.step,
                    span=(bad.begin, bad.end) if 0 <= bad.begin < bad.end else None,
                )
            )
        return found


@dataclass(frozen=True)
class Difference:
    """Replicas that should be equal differ in a part."""

    step: int
    index: int  # of the part
    odd: tuple[int, ...]  # the ranks in the minority; empty without a majority
    agreed: int  # newest step at which the part was equal on all ranks; the attempt's first step if there was none


class Replicas:
    """Compares digests of all ranks, step by step and part by part."""

    def __init__(self, ranks: int, since: int) -> None:
        """Begin with an attempt.

        Args:
            ranks: number of ranks of the job.
            since: the step at which the attempt began.
        """
        self._ranks = ranks
        self._since = since
        self._waiting: dict[int, dict[int, int]] = {}  # key of a step and a part -> rank -> digest
        self._done: dict[int, None] = {}  # keys that were compared, oldest first
        self._agreed: dict[int, int] = {}  # index of a part -> newest step at which the part was equal
        self._different: set[int] = set()  # indexes of the parts whose difference was reported

    def observe(self, digests_by_rank: Iterable[tuple[int, Mapping[int, int]]]) -> list[Difference]:
        """Return the parts that have begun to differ, each part once.

        Args:
            digests_by_rank: each rank with its digests, by key of a step and a part (replica_record.py).
        """
        complete: set[int] = set()
        for rank, digests in digests_by_rank:
            for key, digest in digests.items():
                if key in self._done:
                    continue
                waiting = self._waiting.setdefault(key, {})
                waiting[rank] = digest
                if len(waiting) == self._ranks:
                    complete.add(key)
        found = [difference for key in sorted(complete) if (difference := self._judge(key))]
        for memory in (self._waiting, self._done):
            while len(memory) > _HELD:
                del memory[next(iter(memory))]
        return found

    def _judge(self, key: int) -> Difference | None:
        """Compare the digests of a key, which all ranks have sent. Return a difference that is news, else None."""
        digests = self._waiting.pop(key)
        self._done[key] = None
        step = step_of(key)
        index = index_of(key)
        if len(set(digests.values())) == 1:
            self._agreed[index] = step
            return None
        if index in self._different:
            return None
        self._different.add(index)
        agreed = self._agreed.get(index, self._since)
        return Difference(step=step, index=index, odd=minority(digests), agreed=agreed)


def minority(digests: Mapping[int, int]) -> tuple[int, ...]:
    """Return the ranks whose digest differs from the digest of more than half of the ranks; empty without such a half.

    Args:
        digests: digest by rank.
    """
    ((common, count),) = Counter(digests.values()).most_common(1)
    if 2 * count <= len(digests):
        return ()
    return tuple(sorted(rank for rank, digest in digests.items() if digest != common))


def divergence(found: Difference, name: str, act: str, ranks: int) -> NumericFault:
    """Return the fault that a difference of replicas is.

    Args:
        found: the difference.
        name: name of the part.
        act: what the job asks for: warn, stop or rollback.
        ranks: number of ranks of the job.
    """
    if found.odd:
        who = f"rank{'s' if len(found.odd) > 1 else ''} {', '.join(map(str, found.odd))} of {ranks}"
        what = f"{who} held another {name} than the others after step {found.step}"
    else:
        what = f"the {ranks} ranks held different values of {name} after step {found.step}"
    sentence = f"{what}, though it is kept equal on all (last seen equal after step {found.agreed})"
    return NumericFault(
        kind="divergence",
        act=act,
        rank=found.odd[0] if found.odd else -1,
        step=found.step,
        value=None,
        sentence=sentence,
        before=found.agreed + 1,
        part=name,
    )
