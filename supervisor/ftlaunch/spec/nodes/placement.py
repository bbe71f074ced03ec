"""Which ranks of a job a node runs, and where all ranks meet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Placement:
    """A node's part of an attempt."""

    first: int
    """the node's first rank"""
    count: int
    """ranks of the node"""
    world: int
    """ranks of the job"""
    node: int
    """torchrun's group rank: which of the nodes"""
    nodes: int
    address: str
    """MASTER_ADDR: of the node of rank 0"""
    port: int
    """MASTER_PORT; 0: any port that is free"""

    @property
    def ranks(self) -> range:
        """The node's ranks."""
        return range(self.first, self.first + self.count)


def on_one_node(ranks: int, address: str, port: int | None) -> Placement:
    """All ranks of the job are here. port: None is any."""
    return Placement(0, ranks, ranks, 0, 1, address, port or 0)


def by_node(values: Mapping[int, Any], ranks_each: int) -> dict[int, dict[int, Any]]:
    """By the number of the node: what is given by rank."""
    parts: dict[int, dict[int, Any]] = {}
    for rank, value in values.items():
        parts.setdefault(rank // ranks_each, {})[rank] = value
    return parts
