"""A checkpoint of two nodes, written by the saver of each into one directory, and committed by one of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.checkpoints import empty, image, make_slots
from tests.support.nodes import WORLD, Node, NodeRank, process_group
from tests.support.snapshots import Box, equal, net

from ftlaunch.nodes.channel.claims import Claims, Sign
from ftlaunch_contract.checkpoint import layout, skipped_samples, verify
from ftlaunch_contract.checkpoint.tensor_file import whole_chunk
from ftlaunch_contract.node_ranks import NodeRanks
from ftlaunch_contract.protocol import Why
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.storage.saved_tensors import CheckpointReader

STEP = 3
HEAD = Sign(term=1, address="10.0.0.1", port=29400, machine="a machine", pid=7, started=70, count=0)


class Saver:
    """A saver process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ftlaunch.checkpoints.saver", "NOBODY=1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, target: dict[str, Any], do: str, **more: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({**target, "do": do, **more}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert (answer["did"], answer["step"]) == (do, target["step"])
        return answer

    def close(self) -> None:
        self.process.communicate('{"do": "leave"}\n', timeout=60)
        assert self.process.returncode == 0


@pytest.fixture
def savers() -> Iterator[list[Saver]]:
    found = [Saver(), Saver()]
    yield found
    for saver in found:
        saver.close()


@pytest.fixture
def target(tmp_path: Path) -> dict[str, Any]:
    about = {"checkpoint_dir": str(tmp_path / "checkpoints"), "prefix": "net", "world_size": WORLD}
    assert Claims(tmp_path).claim(HEAD)
    return {"step": STEP, "why": "interval", "abnormal": "", "claim": ({"run_dir": str(tmp_path)}, HEAD.term), **about}


@pytest.fixture
def nodes(memory: Path) -> Iterator[list[Node]]:
    with process_group():
        found = [Node(memory / name, NodeRanks(first, 2, WORLD)) for name, first in (("one", 0), ("other", 2))]
        for node in found:
            for rank in node.ranks:
                rank.train()
            node.together(lambda rank: rank.snapshot(STEP, Why.INTERVAL))
        yield found
        for node in found:
            node.close()


def incomplete(target: dict[str, Any]) -> Path:
    return layout.incomplete_dir(Path(target["checkpoint_dir"]), target["step"])


@pytest.mark.long
def test_what_two_savers_wrote_is_one_checkpoint(
    savers: list[Saver], nodes: list[Node], target: dict[str, Any]
) -> None:
    assert savers[0].ask(target, "prepare") == {"did": "prepare", "step": STEP, "why": "interval"}
    for saver, node in zip(savers, nodes, strict=True):
        written = saver.ask(target, "write", ranks=node.slot_dirs(STEP), bandwidth=None)
        assert written["bytes"] > 0
        assert written["seconds"] >= 0
    done = savers[0].ask(target, "commit", keep=1, keep_every=None)
    directory = Path(done["path"])
    assert done["health"]["status"] == "normal"
    assert (done["deleted"], done["notes"]) == ([], [])
    assert directory == layout.iteration_dir(directory.parent, STEP)
    metadata = verify.verify(directory)
    assert {tuple(chunk["offset"]) for chunk in metadata["tensors"]["model.0.weight"]["chunks"]} == {(0, 0)}
    [chunk] = metadata["tensors"]["model.0.weight"]["chunks"]
    assert "-0000000-" in chunk["file"] or "-0000001-" in chunk["file"], "the lowest rank's"
    assert metadata["world_size"] == WORLD
    assert len([name for name in metadata["files"] if name != layout.COMMON]) == 2 * WORLD

    reader = CheckpointReader(directory)
    for node in nodes:
        for rank in node.ranks:
            fresh = NodeRank(node.directory, node.node, rank.rank, seed=1)
            fresh.state.restore(reader)
            assert equal(fresh.content(), rank.content())
            fresh.close()
    trained = nodes[0].ranks[0]
    for number in range(2):  # of a job that goes on with two ranks
        model = net(1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        own = Box(number=0, tensor=torch.zeros(3))
        RankState({"model": model, "optimizer": optimizer, "own": own}, (), number, 2).restore(reader)
        assert own.content["number"] == 10 * number
        assert equal(list(model.parameters()), list(trained.model.parameters()))
        assert equal(optimizer.state_dict(), trained.optimizer.state_dict())


def slots(root: Path, ranks: range) -> dict[str, str]:
    made = make_slots(root, STEP, WORLD)
    return {str(rank): str(made[rank]) for rank in ranks}


@pytest.mark.long
def test_what_fails_deletes_nothing_and_can_be_asked_for_again(
    savers: list[Saver], target: dict[str, Any], tmp_path: Path
) -> None:
    one, other = savers
    one.ask(target, "prepare")
    one.ask(target, "write", ranks=slots(tmp_path, range(2)))
    there = sorted(incomplete(target).iterdir())
    missing = {"2": slots(tmp_path, range(4))["2"], "3": str(tmp_path / "nowhere")}
    assert other.ask(target, "write", ranks=missing)["error"] == "No such file or directory"
    assert set(there) < set(incomplete(target).iterdir())
    early = one.ask(target, "commit", keep=1)
    assert early["error"] == "the shard of rank 3 is not there (1 are missing)"
    assert set(there) < set(incomplete(target).iterdir())
    assert "error" not in other.ask(target, "write", ranks=slots(tmp_path, range(2, 4)))
    done = one.ask(target, "commit", keep=1)
    verify.verify(Path(done["path"]))


def test_a_late_write_makes_no_directory(savers: list[Saver], target: dict[str, Any], tmp_path: Path) -> None:
    one, other = savers
    one.ask(target, "prepare")
    one.ask(target, "write", ranks=slots(tmp_path, range(2)))
    assert one.ask(target, "discard") == {"did": "discard", "step": STEP, "why": "interval"}
    assert not incomplete(target).exists()
    late = other.ask(target, "write", ranks=slots(tmp_path, range(2, 4)))
    assert late["error"].endswith("is not there: it was given up, or is on no shared storage")
    assert not incomplete(target).exists()
    assert "error" in one.ask(target, "commit", keep=1)
    assert "error" not in one.ask(target, "discard"), "there is nothing to delete"


@pytest.mark.long
def test_a_head_that_was_replaced_commits_nothing(savers: list[Saver], target: dict[str, Any], tmp_path: Path) -> None:
    one = savers[0]
    one.ask(target, "prepare")
    one.ask(target, "write", ranks=slots(tmp_path, range(WORLD)))
    assert Claims(tmp_path).claim(replace(HEAD, term=2, address="10.0.0.2"))
    refused = one.ask(target, "commit", keep=1)
    assert refused["error"] == "another head has taken over the job, at 10.0.0.2 port 29400"
    assert not layout.list_iterations(Path(target["checkpoint_dir"]))


@pytest.mark.parametrize(("dtype", "size"), [("F32", 8), ("U8", 32)])
def test_two_nodes_with_different_tensors_under_one_key_make_no_checkpoint(
    savers: list[Saver], target: dict[str, Any], tmp_path: Path, dtype: str, size: int
) -> None:
    made = make_slots(tmp_path, STEP, WORLD)
    for slot, chunk in ((made[0], whole_chunk("w", "U8", (16,))), (made[3], whole_chunk("w", dtype, (size,)))):
        image(layout.slot_file(slot, "model"), {chunk: bytes(chunk.nbytes)})
    one = savers[0]
    one.ask(target, "prepare")
    one.ask(target, "write", ranks={str(rank): str(slot) for rank, slot in enumerate(made)})
    failed = one.ask(target, "commit", keep=1)
    told = f"rank 3 has saved the tensor w as {dtype} of shape [{size}], a rank before it as U8 of shape [16]"
    assert failed["error"] == told
    assert incomplete(target).exists()
    assert not layout.list_iterations(Path(target["checkpoint_dir"]))


def test_storage_goes_back_once_however_often_it_is_asked(savers: list[Saver], tmp_path: Path) -> None:
    """A saver may die before its answer: taken out, where spans are only added, more samples are left out each time."""
    for step in (3, 5, 8):
        empty(tmp_path, step)
    told = {"checkpoint_dir": str(tmp_path), "step": 5, "skip": [16, 24]}
    first, again = savers[0].ask(told, "go_back"), savers[1].ask(told, "go_back")
    aside = Path(first["aside"])
    assert [path.name for path in aside.iterdir()] == [layout.iteration_dir(tmp_path, 8).name]
    assert first == {
        "did": "go_back",
        "step": 5,
        "aside": str(aside),
        "moved": [8],
        "skipped": [16, 24],
        "not_skipped": "",
    }
    assert again == {**first, "aside": "", "moved": []}
    assert [step for step, _ in layout.list_iterations(tmp_path)] == [5, 3]
    assert skipped_samples.read(tmp_path) == [(16, 24)]


def test_samples_that_cannot_be_noted_do_not_keep_storage_from_going_back(savers: list[Saver], tmp_path: Path) -> None:
    empty(tmp_path, 8)
    (tmp_path / skipped_samples.NAME).write_text("no list")
    answer = savers[0].ask({"checkpoint_dir": str(tmp_path), "step": -1, "skip": [16, 24]}, "go_back")
    assert answer["skipped"] is None and answer["not_skipped"] and answer["aside"]
