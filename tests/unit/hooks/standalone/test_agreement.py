"""Which step all nodes go on from: never one that they do not hold in the same lineage."""

from __future__ import annotations

import pytest

from ftlaunch_contract.node_ranks import NodeRanks
from ftlaunch_contract.pages.page import NONE
from ftlaunch_hooks.standalone.nodes.agreement import NO_LINEAGE, NodeHolds, common_step, set_otherwise
from ftlaunch_hooks.standalone.nodes.links import first_ranks
from ftlaunch_hooks.standalone.settings import AloneError


def holds(lineage: int, *steps: int, settings: int = 1) -> NodeHolds:
    return NodeHolds.of(NodeHolds(settings, lineage, frozenset(steps)).numbers())  # as it is sent


@pytest.mark.parametrize(
    ("nodes", "step"),
    [
        ([holds(5, 10, 11), holds(5, 11, 12)], 11),
        ([holds(5, 10, 11), holds(5, 12, 13)], NONE),
        ([holds(5, 10, 11), holds(6, 10, 11)], NONE),  # the same steps, made in two attempts
        ([holds(5, 10, 11), holds(NO_LINEAGE)], NONE),  # a node that was replaced
        ([holds(NO_LINEAGE, 10), holds(NO_LINEAGE, 10)], NONE),
        ([holds(5, 0), holds(5, 0)], 0),
    ],
)
def test_common_step(nodes: list[NodeHolds], step: int) -> None:
    assert common_step(nodes) == step


def test_a_node_that_is_set_otherwise_is_named() -> None:
    assert set_otherwise([holds(5), holds(5)]) is None
    assert set_otherwise([holds(5), holds(5), holds(5, settings=2)]) == 2


def test_every_node_must_have_the_same_number_of_ranks() -> None:
    assert list(first_ranks(NodeRanks(2, 2, 6), 3)) == [0, 2, 4]
    for node in (NodeRanks(0, 2, 3), NodeRanks(2, 1, 3)):
        with pytest.raises(AloneError, match="every node must have the same number of ranks"):
            first_ranks(node, 2)
