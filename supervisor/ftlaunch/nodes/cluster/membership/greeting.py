"""Whether a node that says hello may take part, and what is to be said of it: pure.

A node that would train something else than the others is turned away: what the job makes must never be silently
different.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ftlaunch.common.formatting import duration
from ftlaunch.nodes.cluster.membership import facts
from ftlaunch.nodes.cluster.membership.facts import NodeFacts

_MOST_WARNINGS, _LONGEST_WARNING = 8, 400  # characters
_CLOCKS_APART = 60.0  # seconds that are worth a word


@dataclass(frozen=True)
class Greeting:
    """What a hello says, checked."""

    facts: NodeFacts
    held: int
    """the place whose memory the node has, or -1"""
    slots: dict[int, list[int]]
    """rank -> steps in its memory"""
    wall: float
    """seconds since the epoch, by its clock"""
    warnings: list[str]
    """what its quick check has found, a clause each"""


def read(hello: Mapping[str, Any], ranks_each: int, places: int) -> Greeting:
    """Raises ValueError, TypeError or OverflowError for nonsense. places: how many the job has."""
    held = hello["held"]
    each = ranks_each
    fits = len(held) == 2 and all(isinstance(one, int) for one in held) and held[1] == each
    place = held[0] // each if fits and held[0] % each == 0 and 0 <= held[0] // each < places else -1
    slots = slots_of(hello)
    wall = float(hello["wall"])
    if not math.isfinite(wall):
        raise ValueError("a time that is none")
    told = hello["warnings"]
    if len(told) > _MOST_WARNINGS or any(not isinstance(one, str) or len(one) > _LONGEST_WARNING for one in told):
        raise ValueError("warnings that are none")
    return Greeting(facts.read(hello["facts"]), place, slots, wall, told)


def slots_of(message: Mapping[str, Any]) -> dict[int, list[int]]:
    """Rank -> steps that a node's memory holds. Raises ValueError or TypeError for nonsense."""
    return {int(rank): [int(step) for step in steps] for rank, steps in message["slots"].items()}


def refusal(job: str, ours: str, node: NodeFacts, head: NodeFacts) -> str:
    """Why a node cannot take part, as a clause that follows `cannot join:`; empty where it can.

    job: what the node was started for. ours: what the head was.
    """
    if job != ours:
        return f"the job at this endpoint is another one ({ours}; this node was started for {job})"
    for what, theirs, mine in (
        ("ftlaunch", node.ftlaunch, head.ftlaunch),
        ("torch", node.torch, head.torch),
        ("Python", _minor(node.python), _minor(head.python)),
    ):
        if theirs != mine:
            told = f"{theirs or 'not known'} on {node.host}, and {mine or 'not known'} on {head.host}"
            return f"{what} is {told}, where the head of the job runs: all nodes must run the same version"
    if node.script != head.script:
        told = f"its digest is {node.script or 'not known'} on {node.host}, {head.script or 'not known'} on {head.host}"
        return f"the script is not the one with which the job was started: {told}"
    return ""


def warnings(greeting: Greeting, head: NodeFacts, now: float) -> list[str]:
    """What differs and is allowed to, and what the node itself warns of, in sentences. now: the head's wall clock."""
    node = greeting.facts
    ahead = greeting.wall - now
    found = [f"warning: {node.host}: {clause}" for clause in greeting.warnings]
    if node.python != head.python:
        found.append(f"warning: Python is {node.python} on {node.host}, and {head.python} on {head.host}")
    if abs(ahead) > _CLOCKS_APART:
        which = "ahead of" if ahead > 0 else "behind"
        told = f"the clock of {node.host} is {duration(abs(ahead))} {which} that of {head.host}"
        found.append(f"warning: {told}: times in logs and of files will differ, and nothing else")
    return found


def _minor(version: str) -> str:
    """Versions of Python that differ in the third number only are taken for the same."""
    return ".".join(version.split(".")[:2])
