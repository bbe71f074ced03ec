"""The groups over which the first ranks of the nodes speak: one to meet, one for each thread that speaks later."""

from __future__ import annotations

import os

import torch.distributed as dist

from ftlaunch_contract.node_ranks import NodeRanks
from ftlaunch_hooks.standalone.nodes.leader_group import LeaderGroup
from ftlaunch_hooks.standalone.settings import AloneError

_TO_MEET = 300.0  # seconds the nodes have to find each other
# Seconds: longer than any collective of the training, which ends the job first where a node falls silent.
_TO_ANSWER = 86_400.0


class Links:
    """Every rank of the job makes them, in attach(); only the first rank of each node uses them."""

    def __init__(self, node: NodeRanks) -> None:
        """Raises AloneError."""
        if not dist.is_available() or not dist.is_initialized():
            raise AloneError(
                f"cannot attach: this node has {node.count} of {node.world_size} ranks, and the nodes can agree only"
                " over torch.distributed; call torch.distributed.init_process_group() before attach()"
            )
        leaders = first_ranks(node, int(os.environ.get("GROUP_WORLD_SIZE", node.world_size // node.count)))
        self.meeting = LeaderGroup(leaders, _TO_MEET)  # waits for the first ranks of all nodes
        self.boundaries = LeaderGroup(leaders, _TO_ANSWER)  # of the thread that trains
        self.saves = LeaderGroup(leaders, _TO_ANSWER)  # of the thread that saves


def first_ranks(node: NodeRanks, nodes: int) -> range:
    """The first rank of each of so many nodes. Raises AloneError where the nodes have not equally many ranks."""
    if nodes * node.count != node.world_size or node.first % node.count:
        raise AloneError(
            f"cannot attach: this node has {node.count} of {node.world_size} ranks on {nodes} nodes; without a"
            " supervisor every node must have the same number of ranks"
        )
    return range(0, node.world_size, node.count)
