"""What agents pass on to the head, and its answers: about the job, and about its nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ftlaunch.nodes.cluster.around import Around
from ftlaunch.nodes.cluster.nodes.node import Node
from ftlaunch.system.device_names import read_names

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]
_LONGEST = 3 << 20  # bytes: a message may be a little longer


def pass_on(node: Node, message: Mapping[str, Any], answer: Answer) -> None:
    """Answer a question that was asked on a node."""
    told = {**answer(message["request"]), "asked": {"host": node.host, "place": node.member.place}}
    if (size := len(json.dumps(told))) > _LONGEST:
        told = {"ok": False, "error": f"the answer is too long for another node ({size} bytes): ask where the head is"}
    node.send("answer", number=message["number"], answer=told)


def overview(nodes: Iterable[Node], around: Around) -> dict[str, Any]:
    """The nodes of a job for `ftctl nodes`: those with a place by place, then the others as they came."""
    rows = sorted(nodes, key=lambda node: (node.member.place < 0, node.member.place, node.member.key))
    now = around.clock()
    found = [_row(node, now, around.machines.failures(node.member.machine), around.ranks_each) for node in rows]
    return {"ok": True, "nodes": found}


def _row(node: Node, now: float, failures: int, ranks_each: int) -> dict[str, Any]:
    place = node.member.place
    first = place * ranks_each
    return {
        "place": place if place >= 0 else None,
        "isolated": node.member.isolated,
        "ready": node.member.ready,
        "host": node.host,
        "address": node.address,
        "ranks": list(range(first, first + ranks_each)) if place >= 0 else [],
        "here_for": round(now - node.came, 3),
        "failures": failures,
        "warnings": node.warnings,
        **({"devices": read_names(node.devices).as_dict()} if node.devices else {}),
        "silent_for": round(now - node.heard, 3),
    }
