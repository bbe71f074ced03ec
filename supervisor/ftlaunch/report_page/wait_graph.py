"""Who waits for whom in a hang, as a graph: groups of ranks that do the same, and arrows between them. Pure.

It follows `autopsy/verdict.py`, which says the same in a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftlaunch.autopsy import flight_recorder, verdict
from ftlaunch.autopsy.rank_dump import RankDump
from ftlaunch.report_page.words import SafeText

_MOST_GROUPS = 12


def wait_graph(culprit: int, dumps: Mapping[int, RankDump], words: SafeText) -> dict[str, Any]:
    """Groups (ranks, what they do, whether they wait, whether it is the culprit) and edges (from, to, in what).

    The culprit is the first group; where its dump is missing nobody is drawn as waiting for it.
    """
    if culprit not in dumps:
        return {"groups": [], "edges": []}
    flights = {rank: dump.flight for rank, dump in dumps.items() if dump.flight is not None}
    others = [rank for rank in dumps if rank != culprit]
    groups: dict[tuple[bool, str], list[int]] = {}
    for rank in others:
        waits = bool(dumps[rank].waiting)
        doing = verdict.in_collective(dumps[rank]) if waits else verdict.doing(dumps[rank])
        groups.setdefault((waits, doing), []).append(rank)
    rows = [{"ranks": [culprit], "doing": _doing(dumps[culprit], words), "culprit": True}]
    edges: list[tuple[int, int, str]] = []
    network = bool(dumps[culprit].waiting and others) and (
        flight_recorder.waiting_in(flights, [culprit, *others]) is not None
    )
    for (waits, doing), ranks in list(groups.items())[:_MOST_GROUPS]:
        rows.append({"ranks": ranks, "doing": _doing(dumps[ranks[0]], words), "culprit": False})
        if waits and not network:
            edges.append((len(rows) - 1, 0, words.line(doing, 200)))
    if dumps[culprit].waiting and not network:
        found = flight_recorder.mismatched(culprit, flights) or flight_recorder.crossed(culprit, flights)
        if found is not None:
            other, _, mine = found
            at = next((n for n, row in enumerate(rows) if other in _ranks(row)), 0)
            edges.append((0, at, f"in {mine}"))
    return {"groups": rows, "edges": edges, "network": network}


def _ranks(row: Mapping[str, Any]) -> list[int]:
    return list(row["ranks"])


def _doing(dump: RankDump, words: SafeText) -> str:
    return words.line(verdict.doing(dump), 300)
