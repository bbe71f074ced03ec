"""What of the replicas is digested, in parts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ftlaunch_contract.pages.page import Page, create_page
from ftlaunch_contract.pages.replica_record import NAMES, index_of, read_digests, step_of
from ftlaunch_hooks.observe.replica_digests import DigestPlan, ReplicaDigests
from ftlaunch_hooks.state.collector import TensorItem


def item(key: str, size: int, **other: object) -> TensorItem:
    tensor = torch.arange(size, dtype=torch.float32)
    made = TensorItem(key, tensor, (0,), (size,), True, "model", True, key)
    return replace(made, **other)  # type: ignore[arg-type]


def test_every_byte_is_in_one_part() -> None:
    items = [item("small", 3), item("big", 300_000), item("tiny", 1)]
    plan = DigestPlan(items)
    covered: dict[str, list[tuple[int, int]]] = {}
    for part in plan.parts:
        for piece in part:
            covered.setdefault(piece.name, []).append((piece.begin, piece.end))
    assert sorted(covered["big"])[0][0] == 0
    assert sorted(covered["big"])[-1][1] == 1_200_000
    for spans in covered.values():
        assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(spans))


def test_a_flipped_bit_changes_its_part_and_no_other() -> None:
    items = [item(f"w{number}", 40_000) for number in range(8)]
    plan = DigestPlan(items)
    before = [plan.digest(index) for index in range(len(plan.parts))]
    items[5].tensor.view(torch.int32)[7] ^= 1
    changed = [index for index, digest in enumerate(before) if plan.digest(index) != digest]
    assert [plan.names[index] for index in changed] == ["w5"]


@pytest.mark.parametrize(
    "other",
    [{"replica": ""}, {"settled": False}, {"tensor": torch.ones(4, 4).t()[:2]}, {"tensor": torch.ones(0)}],
)
def test_what_cannot_be_compared_is_left_out(other: dict[str, object]) -> None:
    assert DigestPlan([item("w", 8, **other)]).parts == []


def test_small_tensors_go_together_and_parts_are_few() -> None:
    plan = DigestPlan([item(f"w{number:05}", 10) for number in range(20_000)])
    assert len(plan.parts) <= 300
    assert plan.names[0] == "w00000 or one of 77 after it"


# --- on the page ----------------------------------------------------------------------------------------------


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    create_page(tmp_path / "page")
    page = Page(tmp_path / "page")
    page.begin(0, 1, 1)
    yield page
    page.close()


def test_the_parts_take_turns(page: Page, tmp_path: Path) -> None:
    items = [item(f"w{number}", 10_000) for number in range(3)]
    agreement = ReplicaDigests(page, 5, tmp_path)
    seen = []
    for step in range(1, 41):
        if (part := agreement.due(step, items)) is not None:
            agreement.record_digest(step, part)
            seen.append((step, part))
    assert [step for step, _ in seen] == [1, 6, 11, 16, 21, 26, 31, 36]
    assert {part for _, part in seen} == {0, 1, 2}
    assert sorted((step_of(key), index_of(key)) for key in read_digests(page)) == seen
    assert json.loads((tmp_path / NAMES).read_text()) == ["w0", "w1", "w2"]
