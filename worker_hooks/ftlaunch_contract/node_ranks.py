"""The ranks of a job that run on this node, and whose pages and snapshots therefore lie in its memory directory.

The supervisor of a node writes them into `protocol.ENV_NODE_RANKS`; the ranks read them from there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(r"(\d{1,9}):(\d{1,9})", re.ASCII)


@dataclass(frozen=True)
class NodeRanks:
    """The ranks `first`, `first` + 1, ... of one node, numbered as in the job."""

    first: int  # the rank that leads the ranks of its node
    count: int
    world_size: int  # number of the job's ranks on all nodes

    def __post_init__(self) -> None:
        """Check the numbers. Raises ValueError where the job has no such ranks."""
        if self.first < 0 or self.count < 1 or self.first + self.count > self.world_size:
            raise ValueError(
                f"cannot place {self.count} ranks from rank {self.first} on: the job has {self.world_size} ranks"
            )

    @property
    def ranks(self) -> range:
        """Return the numbers of this node's ranks."""
        return range(self.first, self.first + self.count)

    @property
    def whole_job(self) -> bool:
        """Whether no other node has ranks of the job."""
        return self.count == self.world_size

    def place(self, rank: int) -> int:
        """Return the index of a rank among the ranks of its node; the first rank's is 0."""
        return rank - self.first


def one_node(world_size: int) -> NodeRanks:
    """Return all ranks of a job that runs on one node."""
    return NodeRanks(first=0, count=world_size, world_size=world_size)


def parse(text: str | None, world_size: int) -> NodeRanks:
    """Read the value of protocol.ENV_NODE_RANKS.

    Args:
        text: "FIRST:COUNT"; None where the variable is not set: then all ranks are on this node.
        world_size: number of the job's ranks on all nodes.

    Raises:
        ValueError: the text has another form, or names ranks that the job has not.
    """
    if text is None:
        return one_node(world_size)
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"cannot read {text!r:.40} as the ranks of a node: it must be FIRST:COUNT")
    return NodeRanks(first=int(found[1]), count=int(found[2]), world_size=world_size)
