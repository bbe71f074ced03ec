"""Formats what `ftctl nodes` prints of a running job, and the line of `ftctl status` on which node was asked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftlaunch.common.formatting import duration, table

_HEADS = ("node", "host", "address", "ranks", "here for", "failures", "last heard")
_LEFT = (0, 1, 2, 3)  # columns that are aligned left


def node_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return a head's answer as `ftctl nodes` prints it, line by line.

    Args:
        answer: the reply on the control socket.
    """
    rows: list[tuple[str, ...]] = [_HEADS]
    for node in answer["nodes"]:
        row = (
            _role(node),
            node["host"],
            node["address"],
            _ranks(node["ranks"]),
            duration(node["here_for"]),
            str(node["failures"]),
            f"{duration(node['silent_for'])} ago",
        )
        rows.append(row)
    return table(rows, left=_LEFT)


def _role(node: Mapping[str, Any]) -> str:
    """Return a node's place, or what a node without a place does."""
    if node["place"] is not None:
        return f"{node['place']} (isolated)" if node["isolated"] else str(node["place"])
    if node["isolated"]:
        return "isolated"
    return "standing by" if node["ready"] else "getting ready"


def _ranks(ranks: Sequence[int]) -> str:
    """Format the consecutive ranks of a node: `-`, `3` or `0-7`."""
    if not ranks:
        return "-"
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"


def asked_on(answer: Mapping[str, Any]) -> list[str]:
    """Return a line on which node was asked, and where the head is; none if the job has a single node.

    Args:
        answer: the reply on the control socket.
    """
    head = answer.get("head")
    asked = answer.get("asked")
    if head is None:
        return []
    where = f"{head['endpoint']} ({head['host']})"
    if asked is None:
        return [f"asked on {head['host']}, where the head of the job runs: {where}"]
    part = f"node {asked['place']}" if asked["place"] >= 0 else "a node without ranks"
    return [f"asked on {part} ({asked['host']}); the head of the job is at {where}"]
