"""What an autopsy has collected -> which rank is behind, in what, and what the others wait for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ftlaunch.autopsy import flight_recorder
from ftlaunch.autopsy.flight_recorder import Collective
from ftlaunch.autopsy.rank_dump import RankDump
from ftlaunch.autopsy.verdict import doing, in_collective, place
from ftlaunch.ranks.view import RankView


def seen(views: Sequence[RankView], remains: Mapping[int, RankDump]) -> list[RankView]:
    """Views taken when a hang was seen, with what the autopsy has shown."""
    late = flight_recorder.behind({rank: r.flight for rank, r in remains.items() if r.flight is not None})
    return [
        replace(
            view,
            stopped=view.stopped or remains[view.rank].stopped,
            waiting=remains[view.rank].waiting,
            behind=view.rank in late,
        )
        if view.rank in remains
        else view
        for view in views
    ]


def verdict(culprit: int, remains: Mapping[int, RankDump]) -> str:
    """Where the culprit is, and what the others wait for: the rest of a sentence that has named it; "": not known."""
    if culprit not in remains:
        return ""
    flights = {rank: r.flight for rank, r in remains.items() if r.flight is not None}
    others = [rank for rank in remains if rank != culprit]
    if remains[culprit].waiting:
        if others and flight_recorder.waiting_in(flights, [culprit, *others]):
            also = f"{'does' if len(others) == 1 else 'do'} {_ranks(others)}"
            return f"it {doing(remains[culprit])}, and so {also}: all have entered it, none gets out (the network?)"
        found = flight_recorder.mismatched(culprit, flights) or flight_recorder.crossed(culprit, flights)
        if found is not None:
            other, theirs, mine = found
            rest = [rank for rank in others if rank != other]
            return "; ".join([_disagreement(remains[culprit], remains[other], theirs, mine), *_waiters(rest, remains)])
    return "; ".join([f"it {doing(remains[culprit])}", *_waiters(others, remains)])


def _disagreement(one: RankDump, other: RankDump, theirs: Collective, mine: Collective) -> str:
    """Two ranks wait for each other in collectives that are not the same."""
    differ, why = (str(mine), str(theirs)), "they disagree on their collectives"
    if mine.group != theirs.group:
        differ = f"{mine} of group {mine.group}", f"{theirs} of group {theirs.group}"
        why = "they take their groups in different orders"
    elif mine.name == theirs.name:
        differ = f"{mine} of {mine.sizes}", f"{theirs} of {theirs.sizes}"
    now = f"was in {differ[1]}" if theirs.over else f"is in {differ[1]}{place(other)}"
    return f"it waits in {differ[0]}{place(one)}, but rank {other.rank} {now}: {why}"


def _waiters(ranks: Sequence[int], remains: Mapping[int, RankDump]) -> Iterator[str]:
    """What the others do: those that do the same, together."""
    groups: dict[tuple[bool, str], list[int]] = {}
    for rank in ranks:
        one = remains[rank]
        waits = bool(one.waiting)
        groups.setdefault((waits, in_collective(one) if waits else doing(one)), []).append(rank)
    for (waits, told), same in groups.items():
        alone = len(same) == 1
        if waits:
            yield f"{_ranks(same)} {'waits' if alone else 'wait'} for it {told}"
        else:
            yield f"{'' if alone else 'each of '}{_ranks(same)} {told}"


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
