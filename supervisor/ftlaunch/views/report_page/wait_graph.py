"""Draws who waits for whom in a hang, as groups of ranks that do the same and edges between the groups. Pure.

The graph must agree with the sentence that `autopsy/verdict.py` writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ftlaunch.autopsy import flight_recorder, verdict
from ftlaunch.autopsy.rank_dump import RankDump
from ftlaunch.views.report_page.words import SafeText

_MOST_GROUPS = 12


def wait_graph(culprit: int, dumps: Mapping[int, RankDump], words: SafeText) -> dict[str, Any]:
    """Build the graph.

    The culprit is the first group. A rank that disagrees with the culprit about a collective is always drawn.

    Args:
        culprit: the rank of the incident.
        dumps: the dumps of the ranks.
        words: makes texts fit for the page.

    Returns:
        `groups` (ranks, what they do, whether the group is the culprit), `edges` (from, to, operation), `network`
        (whether the network is at fault), and `undrawn` (number of ranks without a group). Without a dump of the
        culprit there are no groups.
    """
    if culprit not in dumps:
        return {"groups": [], "edges": [], "undrawn": 0}
    flights = {rank: dump.flight for rank, dump in dumps.items() if dump.flight is not None}
    others = [rank for rank in dumps if rank != culprit]
    network = bool(dumps[culprit].waiting and others) and (
        flight_recorder.waiting_in(flights, [culprit, *others]) is not None
    )
    found = None
    if dumps[culprit].waiting and not network:
        found = flight_recorder.mismatched(culprit, flights) or flight_recorder.crossed(culprit, flights)
    groups = _alike(others, dumps)
    if found is not None:
        groups.sort(
            key=lambda group: found[0] not in group.ranks
        )  # the partner's group first, so that it is not cut off
    rows = [{"ranks": [culprit], "doing": _doing(dumps[culprit], words), "culprit": True}]
    edges: list[tuple[int, int, str]] = []
    for group in groups[:_MOST_GROUPS]:
        rows.append({"ranks": group.ranks, "doing": _doing(dumps[group.ranks[0]], words), "culprit": False})
        if group.waits and not network:
            edges.append((len(rows) - 1, 0, words.line(group.doing, 200)))
    if found is not None:
        edges.append((0, 1, f"in {found[2]}"))
    undrawn = sum(len(group.ranks) for group in groups[_MOST_GROUPS:])
    return {"groups": rows, "edges": edges, "network": network, "undrawn": undrawn}


class _Group(NamedTuple):
    """A group of ranks that do the same."""

    waits: bool
    doing: str
    ranks: list[int]


def _alike(ranks: list[int], dumps: Mapping[int, RankDump]) -> list[_Group]:
    groups: dict[tuple[bool, str], list[int]] = {}
    for rank in ranks:
        waits = bool(dumps[rank].waiting)
        doing = verdict.in_collective(dumps[rank]) if waits else verdict.doing(dumps[rank])
        groups.setdefault((waits, doing), []).append(rank)
    return [_Group(waits=waits, doing=doing, ranks=alike) for (waits, doing), alike in groups.items()]


def _doing(dump: RankDump, words: SafeText) -> str:
    return words.line(verdict.doing(dump), 300)
