"""Keys that name the ranks which share a tensor out among them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch_contract.shared_keys import has_rank, parse, plain_names, shared_key

PATHS = st.text("ab.:-0@,", max_size=12).map(lambda path: path.replace("@", "@@"))
RANKS = st.sets(st.integers(0, 2000), min_size=1, max_size=20)


@given(PATHS, RANKS)
def test_a_key_says_which_ranks(path: str, ranks: set[int]) -> None:
    found = parse(shared_key(path, ranks))
    assert found is not None
    key, runs = found
    assert key == path
    assert {rank for run in runs for rank in run} == ranks
    assert {rank for rank in range(2001) if has_rank(runs, rank)} == ranks


@given(PATHS, RANKS, PATHS, RANKS)
def test_other_ranks_or_another_path_give_another_key(one: str, some: set[int], other: str, more: set[int]) -> None:
    assert (shared_key(one, some) == shared_key(other, more)) == ((one, some) == (other, more))


@pytest.mark.parametrize(
    ("ranks", "key"),
    [
        (range(8), "w@0-7"),
        ([5], "w@5-5"),
        (range(0, 1024, 8), "w@0-1016:8"),
        ([3, 0, 1, 2, 16, 17, 18], "w@0-3,16-18"),
    ],
)
def test_the_key_is_short(ranks: list[int], key: str) -> None:
    assert shared_key("w", ranks) == key


@pytest.mark.parametrize("key", ["w", "w@3", "w@@0-1", "w@0-1@2", "w@", "0-1", "w@0-1x", "w@0-", "w@@@3"])
def test_other_keys_name_no_such_ranks(key: str) -> None:
    assert parse(key) is None


def test_a_plain_name_is_that_of_the_only_group() -> None:
    keys = ["stage0@0-1", "stage1@2-3", "both@0-1", "both@2-3", "own", "own@2-3"]
    assert plain_names(keys) == {"stage0": "stage0@0-1", "stage1": "stage1@2-3"}
