"""Answers requests that agents pass on to the head, and describes the nodes for `ftctl nodes`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ftlaunch.nodes.cluster.cluster_context import ClusterContext
from ftlaunch.nodes.cluster.log_pieces import BUSY, MOST_QUEUED
from ftlaunch.nodes.cluster.nodes.node import Node
from ftlaunch.nodes.cluster.unshared_nodes import RUN_DIR
from ftlaunch.system.device_names import read_names

Answer = Callable[[Mapping[str, Any], Callable[[dict[str, Any]], None]], None]
"""takes a request and a function, and calls the function with the answer, now or later"""
_LONGEST_ANSWER = 3 << 20  # bytes; a message may be a little longer


def pass_on(node: Node, message: Mapping[str, Any], answer: Answer) -> None:
    """Answer a request that was made on a node.

    Args:
        node: the node.
        message: its message `ask`.
        answer: answers requests.
    """

    def reply(found: dict[str, Any]) -> None:
        asked = {"host": node.host, "place": node.member.place, "apart": RUN_DIR in node.apart}
        whole = {**found, "asked": asked}
        if (size := len(json.dumps(whole))) > _LONGEST_ANSWER:
            why = f"the answer is too long for another node ({size} bytes): ask where the head is"
            whole = {"ok": False, "error": why}
        elif message["request"].get("do") == "logs" and node.connection.queued > MOST_QUEUED:
            whole = {**BUSY, "asked": asked}
        node.send("answer", number=message["number"], answer=whole)

    answer(message["request"], reply)


def overview(nodes: Iterable[Node], context: ClusterContext) -> dict[str, Any]:
    """Return the answer to `ftctl nodes`: the nodes with a place, by place, then the others as they came."""
    rows = sorted(nodes, key=lambda node: (node.member.place < 0, node.member.place, node.member.key))
    now = context.clock()
    found = [
        _row(node=node, now=now, failures=context.machines.failures(node.member.machine), ranks_each=context.ranks_each)
        for node in rows
    ]
    return {"ok": True, "nodes": found}


def _row(node: Node, now: float, failures: int, ranks_each: int) -> dict[str, Any]:
    place = node.member.place
    first = place * ranks_each
    devices = {"devices": read_names(node.devices).as_dict()} if node.devices else {}
    return {
        "place": place if place >= 0 else None,
        "isolated": node.member.isolated,
        "ready": node.member.ready,
        "host": node.host,
        "address": node.address,
        "ranks": list(range(first, first + ranks_each)) if place >= 0 else [],
        "here_for": round(now - node.arrived_at, 3),
        "failures": failures,
        "warnings": node.warnings,
        **devices,
        "silent_for": round(now - node.last_message_at, 3),
    }
