"""What the ranks say of their losses and replicas -> what is found, and what is to be done about it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ftlaunch_contract.pages.loss_record import CALM, Bad, LossFault
from ftlaunch_contract.pages.replica_record import index_of, step_of

_HELD = 4096  # digests that wait for those of other ranks, at most


@dataclass(frozen=True)
class NumericFault:
    """Something is wrong with the numbers."""

    kind: str  # nan, spike or divergence
    act: str  # warn, stop or rollback
    rank: int  # -1: it cannot be told
    step: int  # the first bad one
    value: float | None  # its loss
    sentence: str
    before: int  # the first step whose checkpoint is not to be gone back to
    span: tuple[int, int] | None = None  # samples consumed before and after the bad steps, where it is known
    part: str = ""  # of the replicas


def _number(value: float) -> str:
    return f"{value:.6g}"


def _loss_sentence(rank: int, bad: Bad, first: bool) -> str:
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
    """Which bad losses of an attempt are news. Several ranks that say the same within ten steps say it once."""

    def __init__(self, answers: Mapping[LossFault, str]) -> None:
        """answers: off, warn, stop or rollback, by kind."""
        self._answers = answers
        self._told: dict[LossFault, int] = {}

    def look(self, pages: Iterable[tuple[int, Sequence[Bad]]]) -> list[NumericFault]:
        """What is new; pages: (rank, what it says)."""
        found: list[NumericFault] = []
        said = sorted((bad.step, rank, bad) for rank, bads in pages for bad in bads)
        for _, rank, bad in said:
            act = self._answers[bad.kind]
            before = self._told.get(bad.kind)
            if act == "off" or (before is not None and bad.newest <= before + CALM):
                continue
            self._told[bad.kind] = bad.newest
            span = (bad.begin, bad.end) if 0 <= bad.begin < bad.end else None
            sentence = _loss_sentence(rank, bad, before is None)
            step = bad.step if before is None else bad.newest
            found.append(NumericFault(bad.kind.name.lower(), act, rank, step, bad.value, sentence, bad.step, span))
        return found


@dataclass(frozen=True)
class Difference:
    """Ranks that should hold the same hold something else."""

    step: int
    index: int  # of the part
    odd: tuple[int, ...]  # the ranks in the minority; none where there is no majority
    agreed: int  # the newest step at which all ranks held the same of this part; `since` where there was none


class Replicas:
    """Compares digests of all ranks, step by step and part by part."""

    def __init__(self, ranks: int, since: int) -> None:
        """since: the step at which the attempt began."""
        self._ranks, self._since = ranks, since
        self._waiting: dict[int, dict[int, int]] = {}  # what was digested -> rank -> digest
        self._done: dict[int, None] = {}
        self._agreed: dict[int, int] = {}
        self._different: set[int] = set()

    def look(self, told: Iterable[tuple[int, Mapping[int, int]]]) -> list[Difference]:
        """What is new, a part once; told: (rank, key -> digest)."""
        complete: set[int] = set()
        for rank, digests in told:
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
        digests = self._waiting.pop(key)
        self._done[key] = None
        step, index = step_of(key), index_of(key)
        if len(set(digests.values())) == 1:
            self._agreed[index] = step
            return None
        if index in self._different:
            return None
        self._different.add(index)
        return Difference(step, index, minority(digests), self._agreed.get(index, self._since))


def minority(digests: Mapping[int, int]) -> tuple[int, ...]:
    """The ranks that do not hold what more than half of them hold; none where there is no such half."""
    ((common, count),) = Counter(digests.values()).most_common(1)
    if 2 * count <= len(digests):
        return ()
    return tuple(sorted(rank for rank, digest in digests.items() if digest != common))


def divergence(found: Difference, name: str, act: str, ranks: int) -> NumericFault:
    """As it is told; name: of the part."""
    if found.odd:
        who = f"rank{'s' if len(found.odd) > 1 else ''} {', '.join(map(str, found.odd))} of {ranks}"
        what = f"{who} held another {name} than the others after step {found.step}"
    else:
        what = f"the {ranks} ranks held different values of {name} after step {found.step}"
    sentence = f"{what}, though it is kept equal on all (last seen equal after step {found.agreed})"
    rank = found.odd[0] if found.odd else -1
    return NumericFault("divergence", act, rank, found.step, None, sentence, found.agreed + 1, None, name)
