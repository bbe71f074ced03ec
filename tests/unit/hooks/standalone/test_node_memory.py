"""The memory of a node: which steps in it belong to the lineage that begins, and which ranks it counts for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch_contract.node_ranks import NodeRanks
from ftlaunch_contract.pages.page import NONE, Page, create_page, page_path
from ftlaunch_hooks.standalone.nodes.agreement import NO_LINEAGE
from ftlaunch_hooks.standalone.nodes.node_memory import NodeMemory, sweep

NODE = NodeRanks(2, 2, 4)


@pytest.fixture
def memory(tmp_path: Path) -> NodeMemory:
    return NodeMemory(tmp_path / "root", NODE)


def pages(directory: Path) -> list[Page]:
    found = []
    for rank in NODE.ranks:
        create_page(page_path(directory, rank))
        found.append(Page(page_path(directory, rank)))
        for slot, step in enumerate((10, 11, 9)):
            found[-1].set_slot(slot, step)
    return found


@pytest.mark.parametrize(("base", "left"), [(10, {10}), (NONE, set())])
def test_a_new_lineage_keeps_the_step_that_it_begins_from(memory: NodeMemory, base: int, left: set[int]) -> None:
    assert memory.lineage() == NO_LINEAGE
    both = pages(memory.directory)
    memory.begin_lineage(77, base, both)
    assert memory.lineage() == 77
    for page in both:
        assert set(page.slot_steps()) - {NONE} == left


def test_memory_of_other_ranks_does_not_count(memory: NodeMemory, tmp_path: Path) -> None:
    memory.begin_lineage(77, NONE, [])
    assert NodeMemory(tmp_path / "root", NodeRanks(0, 2, 4)).lineage() == NO_LINEAGE
    assert NodeMemory(tmp_path / "root", NODE).lineage() == 77


def test_only_what_belongs_to_a_dead_agent_is_swept(memory: NodeMemory, tmp_path: Path) -> None:
    of_another = memory.directory.with_name(memory.directory.name.replace("agent-", "agent-9"))
    of_another.mkdir()
    sweep(tmp_path / "root")
    assert memory.directory.exists()
    assert not of_another.exists()
