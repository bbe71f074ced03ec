"""The restore map: which rank of the next attempt takes its state from where."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ftlaunch.history.recovery_view import restore_lines
from ftlaunch.memory.recovery_plan import NONE, Kept, RecoveryPlan, of_snapshots
from ftlaunch.memory.restore_map import RestoreMap, restore_map
from ftlaunch.reporting.events.copies import RestorePlanned
from ftlaunch_contract.protocol import Resume

KEEPER_WITH_A_PLACE, KEEPER_THAT_STANDS_BY = 100, 101


def place_of(keeper: int) -> int:
    return {KEEPER_WITH_A_PLACE: 2}.get(keeper, NONE)


def mapped(plan: RecoveryPlan, kind: Resume | None = None) -> RestoreMap:
    """Of three nodes with two ranks each."""
    return restore_map(plan.kind if kind is None else kind, plan, ranks=6, ranks_each=2, place_of=place_of)


def written(found: RestoreMap, **more: Any) -> dict[str, Any]:
    """What recovery.json holds once it is read again."""
    line = {"attempt": 4, **RestorePlanned(found).fields(), "done": False, "fetched": [], **more}
    told: dict[str, Any] = json.loads(json.dumps(line))
    return told


def lost_node(keeper: int) -> RecoveryPlan:
    """Ranks 2 and 3 have nothing in memory, another node keeps copies of them."""
    slots = {rank: [8, 4] for rank in (0, 1, 4, 5)}
    return of_snapshots(slots, 6, ranks_each=2, kept=[Kept(rank, 8, keeper) for rank in (2, 3)])


def test_a_lost_node() -> None:
    found = mapped(lost_node(KEEPER_WITH_A_PLACE))
    assert found.lost == [2, 3]
    assert RestorePlanned(found).fields() == {
        "step": 8,
        "source": "peer",
        "lost": "2, 3",
        "sources": [
            {"ranks": "0, 1, 4, 5", "from": "own memory"},
            {"ranks": "2, 3", "from": "copies", "keeper": 2},
        ],
        "replicas": [0, 2],
    }
    assert restore_lines(written(found)) == [
        "the next attempt resumes from the memory of other nodes at step 8: planned; not all ranks have it yet",
        "  ranks 0, 1, 4, 5: the memory of their own node",
        "  ranks 2, 3: lost; their copies from node 2; what replicas hold alike from nodes 0, 2",
    ]


def test_copies_on_a_node_that_stands_by() -> None:
    lines = restore_lines(written(mapped(lost_node(KEEPER_THAT_STANDS_BY))))
    assert lines[2].startswith("  ranks 2, 3: lost; their copies from a node that stands by;")


def test_what_was_fetched_is_shown_part_by_part() -> None:
    copy = {"rank": 2, "group": "opt", "node": 2, "of": 2, "bytes": 64}
    replica = {"rank": 2, "group": "model", "node": 0, "of": 0, "bytes": 512}
    fetched = [{"place": 1, "seconds": 0.1, "bytes": 576, "sources": [copy, replica]}]
    lines = restore_lines(written(mapped(lost_node(KEEPER_WITH_A_PLACE)), done=True, fetched=fetched))
    assert lines[0] == "attempt 4 resumes from the memory of other nodes at step 8"
    assert lines[-2:] == [
        "  rank 2, opt: 64 bytes from node 2, a copy, brought to node 1",
        "  rank 2, model: 512 bytes from node 0, of its replica, rank 0, brought to node 1",
    ]
    planned = [{"place": 1, "sources": [replica]}]
    lines = restore_lines(written(mapped(lost_node(KEEPER_WITH_A_PLACE)), fetched=planned))
    assert lines[-1] == "  rank 2, model: 512 bytes from node 0, of its replica, rank 0, to be brought to node 1"


def test_all_find_their_step_in_memory() -> None:
    found = mapped(of_snapshots({rank: [8] for rank in range(6)}, 6, ranks_each=2))
    assert (found.lost, found.replicas) == ([], ())
    assert restore_lines(written(found))[1:] == ["  ranks 0 to 5: the memory of their own node"]


@pytest.mark.parametrize(
    ("kind", "step", "first", "second"),
    [
        (Resume.UNDECIDED, 40, "resumes from storage at step 40", "storage: the newest checkpoint that verifies"),
        (Resume.UNDECIDED, NONE, "resumes from storage:", "storage: the newest checkpoint that verifies"),
        (Resume.FRESH, 0, "begins at step 0", "nothing: the training begins"),
    ],
)
def test_all_have_lost_their_memory(kind: Resume, step: int, first: str, second: str) -> None:
    found = mapped(RecoveryPlan(Resume.STORAGE, step, {}), kind)
    assert found.lost == list(range(6))
    lines = restore_lines(written(found))
    assert lines[0].startswith(f"the next attempt {first}")
    assert lines[1].startswith(f"  ranks 0 to 5: {second}")


def test_a_single_rank_is_one() -> None:
    found = restore_map(Resume.MEMORY, of_snapshots({0: [8]}, 1), ranks=1, ranks_each=0, place_of=lambda _: NONE)
    assert restore_lines(written(found, done=True))[1:] == ["  rank 0: the memory of its own node"]
