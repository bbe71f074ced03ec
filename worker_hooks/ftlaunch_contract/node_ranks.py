"""Which of a job's ranks run on this node: those whose pages and snapshots lie in its memory directory."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(r"(\d{1,9}):(\d{1,9})", re.ASCII)


@dataclass(frozen=True)
class NodeRanks:
    """The ranks `first`, `first` + 1, ... of one node, by their numbers in the job."""

    first: int  # leads the ranks of its node
    count: int
    world_size: int  # ranks of the job, on all nodes

    def __post_init__(self) -> None:
        """Raises ValueError where the job has no such ranks."""
        if self.first < 0 or self.count < 1 or self.first + self.count > self.world_size:
            raise ValueError(
                f"cannot place {self.count} ranks from rank {self.first} on: the job has {self.world_size} ranks"
            )

    @property
    def ranks(self) -> range:
        """The numbers of this node's ranks."""
        return range(self.first, self.first + self.count)

    @property
    def whole_job(self) -> bool:
        """Whether no other node has ranks of the job."""
        return self.count == self.world_size

    def place(self, rank: int) -> int:
        """The place of a rank among those of its node; the first one's is 0."""
        return rank - self.first


def one_node(world_size: int) -> NodeRanks:
    """All ranks of a job, on one node."""
    return NodeRanks(0, world_size, world_size)


def parse(text: str | None, world_size: int) -> NodeRanks:
    """Read protocol.ENV_NODE_RANKS, "FIRST:COUNT"; None: all ranks are on this node. Raises ValueError."""
    if text is None:
        return one_node(world_size)
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"cannot read {text!r:.40} as the ranks of a node: it must be FIRST:COUNT")
    return NodeRanks(int(found[1]), int(found[2]), world_size)
