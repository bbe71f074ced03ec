"""The ranks of a node, as the supervisor tells them."""

from __future__ import annotations

import pytest

from ftlaunch_contract.node_ranks import NodeRanks, one_node, parse


def test_the_ranks_of_a_node() -> None:
    node = parse("2:3", 8)
    assert node == NodeRanks(2, 3, 8)
    assert list(node.ranks) == [2, 3, 4]
    assert [node.place(rank) for rank in node.ranks] == [0, 1, 2]
    assert not node.whole_job


def test_nothing_said_is_one_node() -> None:
    assert parse(None, 4) == one_node(4) == parse("0:4", 4)
    assert one_node(4).whole_job


@pytest.mark.parametrize("text", ["", "2", "2:", ":2", "2:0", "3:2", "0:5", "-1:2", "1: 2", "1:2:3", "٣:1", "9" * 99])
def test_what_no_node_has_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"cannot (read|place) "):
        parse(text, 4)
