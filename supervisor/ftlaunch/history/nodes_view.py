"""What `ftctl nodes` prints of a running job, and how `ftctl status` says where one is asking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftlaunch.common.formatting import duration, table

_HEADS = ("node", "host", "address", "ranks", "here for", "failures", "last heard")
_LEFT = (0, 1, 2, 3)


def node_lines(answer: Mapping[str, Any]) -> list[str]:
    """A head's answer as `ftctl nodes` prints it."""
    rows: list[tuple[str, ...]] = [_HEADS]
    for node in answer["nodes"]:
        heard = f"{duration(node['silent_for'])} ago"
        told = _part(node), node["host"], node["address"], _ranks(node["ranks"])
        rows.append((*told, duration(node["here_for"]), str(node["failures"]), heard))
    return table(rows, left=_LEFT)


def _part(node: Mapping[str, Any]) -> str:
    if node["place"] is None:
        return "isolated" if node["isolated"] else "standing by" if node["ready"] else "getting ready"
    return f"{node['place']} (isolated)" if node["isolated"] else str(node["place"])


def _ranks(ranks: Sequence[int]) -> str:
    return "-" if not ranks else str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"


def asked_on(answer: Mapping[str, Any]) -> list[str]:
    """A line on which node of several the question was asked, and where the head is; none for one node."""
    head, asked = answer.get("head"), answer.get("asked")
    if head is None:
        return []
    where = f"{head['endpoint']} ({head['host']})"
    if asked is None:
        return [f"asked on {head['host']}, where the head of the job runs: {where}"]
    part = f"node {asked['place']}" if asked["place"] >= 0 else "a node without ranks"
    return [f"asked on {part} ({asked['host']}); the head of the job is at {where}"]
