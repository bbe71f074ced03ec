"""What another node holds as well, and what it lacks."""

from __future__ import annotations

import pytest

from ftlaunch.nodes.peers.plan.chunk_places import (
    Runs,
    as_lists,
    as_runs,
    byte_ranges,
    checked_runs,
    indexes,
    own_keys,
    own_runs,
    plain_key,
    total,
)
from ftlaunch.nodes.peers.plan.described_slot import DescribedSlot, held_by, lacking_of
from ftlaunch.nodes.peers.plan.tensor_layout import Layouts, TensorLayout
from ftlaunch_contract.checkpoint.tensor_file import Chunk, Damaged, build_header, whole_chunk

LAYOUTS = Layouts()


def layout(*chunks: Chunk) -> TensorLayout:
    return LAYOUTS.of(build_header(chunks)[0])


def flat(key: str, size: int = 8) -> Chunk:
    return whole_chunk(key, "U8", (size,))


@pytest.mark.parametrize(
    ("key", "plain"),
    [("w@3", "w"), ("w", None), ("w@@3", None), ("w@@@3", "w@@"), ("w@3.x", None), ("@12", ""), ("a@1b@2", "a@1b")],
)
def test_a_key_names_the_rank_that_saves_it_as_its_own(key: str, plain: str | None) -> None:
    assert plain_key(key) == plain


def slot(found: TensorLayout, own: Runs = (), sampled: bytes = b"alike") -> DescribedSlot:
    return DescribedSlot(0, {"model": found}, b"", {"model": own}, {"model": [sampled] * len(found.chunks)})


def lacking(offered: DescribedSlot, *ours: DescribedSlot) -> Runs:
    return lacking_of([offered], held_by(ours))[0]["model"]


def test_what_rank_0_saves_as_its_own_is_known_by_what_the_others_save() -> None:
    first, other = layout(flat("rng"), flat("w")), layout(flat("rng@1"))
    own = own_keys([{"opt": first}, {"opt": other}])
    assert own == {"rng", "rng@1"}
    held = held_by([slot(first, own_runs(first, own)), slot(other, own_runs(other, own))])
    assert {identity[0] for identity in held} == {"w"}


def test_a_node_lacks_what_is_another_dtype_shape_or_place_or_a_ranks_own() -> None:
    offered = layout(
        flat("same"),
        whole_chunk("dtype", "I8", (8,)),
        Chunk("part", "U8", (4,), "part", (4,), (8,)),
        flat("shape", 16),
        flat("own"),
    )
    ours = layout(
        flat("same"), flat("dtype"), Chunk("part", "U8", (4,), "part", (0,), (8,)), flat("shape"), flat("own")
    )
    own = own_runs(offered, {"own"})
    assert own == ((4, 5),)
    assert lacking(slot(offered, own), slot(ours)) == ((1, 5),)
    assert lacking(slot(offered), slot(ours)) == ((1, 4),)
    assert lacking(slot(offered)) == ((0, 5),)
    assert lacking(slot(ours), slot(ours)) == ()


def test_a_node_lacks_what_it_holds_with_other_values() -> None:
    found = layout(flat("a"), flat("b"))
    assert lacking(slot(found), slot(found, sampled=b"other")) == ((0, 2),)


def test_runs_are_ranges_of_bytes() -> None:
    found = layout(flat("a", 8), flat("b", 0), flat("c", 24))
    start = len(found.header)
    assert found.size == start + 32
    assert byte_ranges(found, ((0, 3),)) == [(start, start + 32)]
    assert byte_ranges(found, ((0, 1), (2, 3))) == [(start, start + 8), (start + 8, start + 32)]
    assert byte_ranges(found, ((1, 2),)) == []
    assert total({3: {"opt": found}}, {3: {"opt": ((0, 1),)}}) == 8
    assert as_runs([0, 1, 2, 5, 7, 8]) == ((0, 3), (5, 6), (7, 9))
    assert indexes(((0, 3), (5, 6))) == {0, 1, 2, 5}
    assert checked_runs(as_lists(((0, 3), (5, 6))), 6, "it") == ((0, 3), (5, 6))


@pytest.mark.parametrize(
    "told",
    [None, {}, [1], [[0]], [[0, 1, 2]], [[0, True]], [[1, 1]], [[-1, 1]], [[0, 7]], [[2, 3], [0, 1]], [["0", 1]]],
)
def test_runs_from_another_node_are_checked(told: object) -> None:
    with pytest.raises(ValueError, match="`lacks`"):
        checked_runs(told, 6, "`lacks`")


def test_layouts_are_remembered_by_their_headers() -> None:
    header = build_header([flat("a")])[0]
    assert LAYOUTS.of(header) is LAYOUTS.of(bytes(bytearray(header)))
    with pytest.raises(Damaged):
        LAYOUTS.of(header[:-1])
    many = Layouts()
    first = many.of(header)
    for number in range(300):
        many.of(build_header([flat(f"a{number}")])[0])
    assert many.of(header) is not first, "the oldest are forgotten"
