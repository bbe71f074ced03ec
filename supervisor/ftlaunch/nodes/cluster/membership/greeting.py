"""Reads the hello of a new node, and decides whether the node may take part. Pure.

A node that would train something else than the other nodes is refused, because the result of a job must never be
silently different.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ftlaunch.common.formatting import duration
from ftlaunch.nodes.cluster.membership import facts
from ftlaunch.nodes.cluster.membership.facts import NodeFacts

_MOST_WARNINGS = 8  # of one node
_LONGEST_WARNING = 400  # characters
_CLOCKS_APART = 60.0  # seconds between two clocks that are worth a warning


@dataclass(frozen=True)
class Greeting:
    """The checked content of a hello."""

    facts: NodeFacts
    held: int
    """the place whose memory the node has, or -1"""
    slots: dict[int, list[int]]
    """rank -> steps in the slots of its memory"""
    wall: float
    """the node's clock, in seconds since the epoch"""
    warnings: list[str]
    """the findings of the node's quick check, one clause each"""


def read(hello: Mapping[str, Any], ranks_each: int, places: int) -> Greeting:
    """Check a hello.

    Args:
        hello: the message.
        ranks_each: ranks of each node.
        places: the largest number of places of the job.

    Raises:
        ValueError: a field is malformed; TypeError and OverflowError can be raised for the same reason.
    """
    held = hello["held"]
    place = -1
    if len(held) == 2 and all(isinstance(number, int) for number in held):
        first, count = held
        if count == ranks_each and first % ranks_each == 0 and 0 <= first // ranks_each < places:
            place = first // ranks_each
    slots = slots_of(hello)
    wall = float(hello["wall"])
    if not math.isfinite(wall):
        raise ValueError("a time that is none")
    found = hello["warnings"]
    if len(found) > _MOST_WARNINGS or any(not isinstance(one, str) or len(one) > _LONGEST_WARNING for one in found):
        raise ValueError("warnings that are none")
    return Greeting(facts=facts.read(hello["facts"]), held=place, slots=slots, wall=wall, warnings=found)


def slots_of(message: Mapping[str, Any]) -> dict[int, list[int]]:
    """Return the steps in a node's memory, by rank. Raises ValueError or TypeError if they are malformed."""
    return {int(rank): [int(step) for step in steps] for rank, steps in message["slots"].items()}


def refusal(job: str, ours: str, node: NodeFacts, head: NodeFacts) -> str:
    """Return why a node cannot take part, as a clause that follows `cannot join:`; empty if it can.

    Args:
        job: the fingerprint of the node's job.
        ours: the fingerprint of the head's job.
        node: the facts of the node.
        head: the facts of the head's own node.
    """
    if job != ours:
        return f"the job at this endpoint is another one ({ours}; this node was started for {job})"
    for what, theirs, mine in (
        ("ftlaunch", node.ftlaunch, head.ftlaunch),
        ("torch", node.torch, head.torch),
        ("Python", _minor(node.python), _minor(head.python)),
    ):
        if theirs != mine:
            versions = f"{theirs or 'not known'} on {node.host}, and {mine or 'not known'} on {head.host}"
            return f"{what} is {versions}, where the head of the job runs: all nodes must run the same version"
    if node.script != head.script:
        theirs = f"{node.script or 'not known'} on {node.host}"
        mine = f"{head.script or 'not known'} on {head.host}"
        return f"the script is not the one with which the job was started: its digest is {theirs}, {mine}"
    return ""


def warnings(greeting: Greeting, head: NodeFacts, now: float) -> list[str]:
    """Return warnings about a node that may take part, in sentences.

    Args:
        greeting: the node's hello.
        head: the facts of the head's own node.
        now: the head's clock, in seconds since the epoch.
    """
    node = greeting.facts
    ahead = greeting.wall - now
    found = [f"warning: {node.host}: {clause}" for clause in greeting.warnings]
    if node.python != head.python:
        found.append(f"warning: Python is {node.python} on {node.host}, and {head.python} on {head.host}")
    if abs(ahead) > _CLOCKS_APART:
        which = "ahead of" if ahead > 0 else "behind"
        clocks = f"the clock of {node.host} is {duration(abs(ahead))} {which} that of {head.host}"
        found.append(f"warning: {clocks}: times in logs and of files will differ, and nothing else")
    return found


def _minor(version: str) -> str:
    """Return a Python version without its third number, which may differ between nodes."""
    return ".".join(version.split(".")[:2])
