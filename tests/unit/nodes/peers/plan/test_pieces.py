"""Pieces of a copy, and who supplies what of a fetch."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.nodes.peers.plan.pieces import LARGEST, MOST_RANGES, Stretch, batches, cut, joined, share_out

MIB = 1 << 20
sizes = st.lists(st.integers(0, 40), max_size=30)


@given(sizes, st.integers(1, 20), st.integers(1, 4))
def test_pieces_are_all_of_it_in_order_and_not_larger(lengths: list[int], largest: int, most: int) -> None:
    ranges = [(0, "opt", 100 * n, 100 * n + length) for n, length in enumerate(lengths)]
    pieces = cut(ranges, largest, most)
    assert all(0 < sum(end - begin for *_, begin, end in piece) <= largest for piece in pieces)
    assert all(len(piece) <= most for piece in pieces)
    found = [byte for piece in pieces for *_, begin, end in piece for byte in range(begin, end)]
    assert found == [byte for *_, begin, end in ranges for byte in range(begin, end)]


def stretch(begin: int, size: int, *nodes: int, at: int = 0) -> Stretch:
    return Stretch(0, "opt", begin, size, dict.fromkeys(nodes, (1, "opt", at + begin)))


def test_neighbours_are_joined_where_they_are_neighbours_everywhere() -> None:
    together = joined([stretch(0, 5, 1, 2), stretch(5, 5, 1, 2), stretch(10, 5, 1), stretch(15, 5, 1, at=1)])
    assert together == [stretch(0, 10, 1, 2), stretch(10, 5, 1), stretch(15, 5, 1, at=1)]


@given(st.lists(st.tuples(st.integers(1, 40 * MIB), st.sets(st.integers(0, 4), min_size=1)), max_size=12))
def test_every_byte_is_asked_for_once_of_a_node_that_has_it(parts: list[tuple[int, set[int]]]) -> None:
    begin, stretches = 0, []
    for size, nodes in parts:
        stretches.append(stretch(begin, size, *nodes))
        begin += size
    shares = share_out(stretches)
    asked = sorted((part.begin, part.begin + part.size) for share in shares.values() for part in share)
    assert all(end == first for (_, end), (first, _) in pairwise(asked))
    assert sum(part.size for share in shares.values() for part in share) == begin
    for node, share in shares.items():
        for part in share:
            assert part.wanted_from(node) == (1, "opt", part.begin, part.begin + part.size)
        for piece in batches(share):
            assert sum(part.size for part in piece) <= LARGEST
            assert len(piece) <= MOST_RANGES


def test_the_load_is_even() -> None:
    shares = share_out([stretch(0, 999 * MIB, 1, 2, 3)])
    loads = Counter({node: sum(part.size for part in share) for node, share in shares.items()})
    assert max(loads.values()) - min(loads.values()) <= 64 * MIB
    shares = share_out([stretch(0, 100 * MIB, 1), stretch(100 * MIB, 100 * MIB, 1, 2)])
    assert {node: sum(part.size for part in share) for node, share in shares.items()} == {1: 100 * MIB, 2: 100 * MIB}


def test_what_a_failed_node_has_is_asked_of_others() -> None:
    assert share_out([stretch(0, 10, 1, 2)], {1}).keys() == {2}
    with pytest.raises(LookupError):
        share_out([stretch(0, 10, 1)], {1})
