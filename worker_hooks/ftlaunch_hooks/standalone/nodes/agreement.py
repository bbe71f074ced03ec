"""Which step all nodes hold in memory, and whether they are set alike. Pure.

A step in memory counts only within its lineage: the number that all nodes were given when their ranks last resumed. Two
nodes that hold a step of two lineages have made that step in two attempts, and perhaps differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import SLOTS

NO_LINEAGE = 0


@dataclass(frozen=True)
class NodeHolds:
    """What a node brings to the meeting."""

    settings: int  # a digest of what must be set alike on all nodes
    lineage: int
    steps: frozenset[int]  # that all its ranks hold in memory

    def numbers(self) -> list[int]:
        """For LeaderGroup.gather."""
        steps = sorted(self.steps)
        return [self.settings, self.lineage, *steps, *[NONE] * (SLOTS - len(steps))]

    @staticmethod
    def of(numbers: Sequence[int]) -> NodeHolds:
        """From `numbers`."""
        return NodeHolds(numbers[0], numbers[1], frozenset(numbers[2:]) - {NONE})


def common_step(nodes: Sequence[NodeHolds]) -> int:
    """The newest step that all nodes hold in the same lineage, or NONE."""
    lineages = {node.lineage for node in nodes}
    if len(lineages) > 1 or NO_LINEAGE in lineages:
        return NONE
    return max(frozenset.intersection(*(node.steps for node in nodes)), default=NONE)


def set_otherwise(nodes: Sequence[NodeHolds]) -> int | None:
    """A node whose settings are not those of the first one; None: there is none."""
    return next((place for place, node in enumerate(nodes) if node.settings != nodes[0].settings), None)
