"""Placement: which ranks of a job a node runs, and where all ranks meet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Placement:
    """A node's share of the ranks of an attempt."""

    first: int
    """first rank of the node"""
    count: int
    """number of ranks on the node"""
    world: int
    """number of ranks of the job"""
    node: int
    """number of the node, which torchrun calls its group rank"""
    nodes: int
    """number of nodes"""
    address: str
    """MASTER_ADDR, the address of the node of rank 0"""
    port: int
    """MASTER_PORT; 0 for any free port"""

    @property
    def ranks(self) -> range:
        """The ranks of the node."""
        return range(self.first, self.first + self.count)


def on_one_node(ranks: int, address: str, port: int | None) -> Placement:
    """Return the placement of a job with a single node.

    Args:
        ranks: number of ranks.
        address: MASTER_ADDR.
        port: MASTER_PORT; None for any free port.
    """
    return Placement(first=0, count=ranks, world=ranks, node=0, nodes=1, address=address, port=port or 0)


def by_node(values: Mapping[int, Any], ranks_each: int) -> dict[int, dict[int, Any]]:
    """Group values by node.

    Args:
        values: the values by rank.
        ranks_each: number of ranks on each node.

    Returns:
        The values by number of the node and rank; nodes without a value are left out.
    """
    parts: dict[int, dict[int, Any]] = {}
    for rank, value in values.items():
        parts.setdefault(rank // ranks_each, {})[rank] = value
    return parts
