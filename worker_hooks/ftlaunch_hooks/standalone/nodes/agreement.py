"""Finds the step that all nodes hold in memory, and a node whose settings differ. Pure.

A step in memory counts only within its lineage, a number that all nodes receive whenever their ranks resume. Two nodes
that hold a step in different lineages have computed this step in different attempts, perhaps with different results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import SLOTS

NO_LINEAGE = 0


@dataclass(frozen=True)
class NodeHolds:
    """The settings and snapshots that a node reports before the nodes choose where to resume."""

    settings: int
    """digest of the settings that must be the same on all nodes"""
    lineage: int
    """lineage of the steps, or NO_LINEAGE"""
    steps: frozenset[int]
    """steps that all ranks of the node hold in memory"""

    def numbers(self) -> list[int]:
        """Encode this report for LeaderGroup.gather: 2 + SLOTS numbers."""
        steps = sorted(self.steps)
        return [self.settings, self.lineage, *steps, *[NONE] * (SLOTS - len(steps))]

    @staticmethod
    def of(numbers: Sequence[int]) -> NodeHolds:
        """Decode the numbers that `numbers` returned."""
        return NodeHolds(numbers[0], numbers[1], frozenset(numbers[2:]) - {NONE})


def common_step(nodes: Sequence[NodeHolds]) -> int:
    """Return the newest step that all nodes hold in the same lineage, or NONE."""
    lineages = {node.lineage for node in nodes}
    if len(lineages) > 1 or NO_LINEAGE in lineages:
        return NONE
    return max(frozenset.intersection(*(node.steps for node in nodes)), default=NONE)


def set_otherwise(nodes: Sequence[NodeHolds]) -> int | None:
    """Return the number of the first node whose settings differ from node 0's, or None."""
    return next((place for place, node in enumerate(nodes) if node.settings != nodes[0].settings), None)
