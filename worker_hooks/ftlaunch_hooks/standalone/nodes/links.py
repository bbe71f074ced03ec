"""Makes the groups over which the first ranks of the nodes talk: one to meet, and one for each thread that talks."""

from __future__ import annotations

import os

import torch.distributed as dist

from ftlaunch_contract.node_ranks import NodeRanks
from ftlaunch_hooks.standalone.nodes.leader_group import LeaderGroup
from ftlaunch_hooks.standalone.settings import AloneError

_MEETING_SECONDS = 300.0  # the time that the nodes have to find each other
# Seconds. If a node falls silent, a collective of the training, which waits for a shorter time, ends the job first.
_TO_ANSWER = 86_400.0


class Links:
    """The groups of one job. Every rank makes them in attach(); only the first rank of each node uses them."""

    def __init__(self, node: NodeRanks) -> None:
        """Make the groups.

        Raises:
            AloneError: there is no process group, nodes have different numbers of ranks, or a node does not come.
        """
        if not dist.is_available() or not dist.is_initialized():
            raise AloneError(
                f"cannot attach: this node has {node.count} of {node.world_size} ranks, and the nodes can agree only"
                " over torch.distributed; call torch.distributed.init_process_group() before attach()"
            )
        leaders = first_ranks(node, int(os.environ.get("GROUP_WORLD_SIZE", node.world_size // node.count)))
        self.meeting = LeaderGroup(leaders, _MEETING_SECONDS)
        """the group for the agreement on where to resume; making it waits for all nodes"""
        self.boundaries = LeaderGroup(leaders, _TO_ANSWER)
        """the group of the thread that trains"""
        self.saves = LeaderGroup(leaders, _TO_ANSWER)
        """the group of the thread that saves; attach() uses it before, too"""


def first_ranks(node: NodeRanks, nodes: int) -> range:
    """Return the first rank of each of `nodes` nodes. Raises AloneError if nodes have different numbers of ranks."""
    if nodes * node.count != node.world_size or node.first % node.count:
        raise AloneError(
            f"cannot attach: this node has {node.count} of {node.world_size} ranks on {nodes} nodes; without a"
            " supervisor every node must have the same number of ranks"
        )
    return range(0, node.world_size, node.count)
