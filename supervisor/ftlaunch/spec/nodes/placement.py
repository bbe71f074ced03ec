"""Which ranks of a job a node runs, and where all ranks meet. Pure."""

from __future__ import annotations

from dataclasses import dataclass


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
