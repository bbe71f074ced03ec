"""A machine is lost and none takes its place: copies of its snapshots are made whole on another node, and saved.

Taken out: these jobs go on from storage's last checkpoint, or have none.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from tests.nodes.test_lost_nodes import lose
from tests.nodes.test_peer_memory import AT, copied, end_of, wait_copied
from tests.support.agents import NodesJob
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

from ftlaunch_contract.checkpoint import layout

SHAPES = Path(__file__).parents[1] / "jobs" / "shapes.py"
WHOLE = f"step {AT} can be saved: its snapshots of rank 2, 3, whose node is lost, were made again from copies on node 0"


@pytest.fixture
def held(nodes: NodesJob) -> NodesJob:
    """A job of two nodes whose memory has a step, and copies of it, that storage has not."""
    nodes.env["FAULT"] = f"deaf 3 {AT}"
    nodes.options = (*nodes.options, "--storage-interval", "off", "--peer-interval", "4")
    return nodes


@pytest.mark.slow
def test_a_job_that_waits_in_vain_for_a_node_saves_its_newest_step(held: NodesJob, alone: FtJob) -> None:
    held.options = (*held.options, "--node-wait", "12s")
    held.begin()
    held.wait_held(AT)
    wait_copied(held, AT)
    lose(held, 1)
    assert held.codes() == [75, -signal.SIGKILL], held.transcript
    assert WHOLE in held.transcript
    assert [step for step, _ in layout.list_iterations(held.run_dir / "checkpoints")] == [AT]
    held.assert_clean(".node1")
    shutil.rmtree(held.memory_of(1))  # its machine is gone for good
    del held.env["FAULT"]
    held.begin()
    assert held.codes()[2:] == [0, 0], held.transcript
    assert held.resumed()[:2] == ("storage", AT)
    held.assert_same_end(alone)


@pytest.mark.long
def test_a_job_that_goes_on_with_fewer_nodes_loses_no_step(held: NodesJob) -> None:
    held.range = "1:2"
    held.begin()
    held.wait_held(AT)
    wait_copied(held, AT)
    lose(held, 1)
    assert held.codes() == [0, -signal.SIGKILL], held.transcript
    assert WHOLE in held.transcript
    assert held.resumed() == ("storage", AT, 0), held.transcript
    assert "the job goes on with 1 node instead of 2 (1:2), 2 ranks" in held.journal_text + held.transcript
    held.assert_clean(".node1")


@pytest.mark.slow
def test_shards_of_a_lost_node_are_saved_by_its_buddy(tmp_path: Path) -> None:
    words = ("--kind", "fsdp", "--steps", "60", "--step-time", "0.1")
    for name in ("alone", "nodes"):
        (tmp_path / name).mkdir()
    alone = FtJob(tmp_path / "alone")
    nodes = NodesJob(tmp_path / "nodes", nodes=3, ranks=1)
    try:
        alone.start(script=SHAPES, args=("--out", str(alone.out), *words), ranks=3)
        assert alone.wait() == 0, alone.stderr
        nodes.script, nodes.words = SHAPES, words
        nodes.options = (*nodes.options, "--storage-interval", "off", "--peer-interval", "4", "--node-wait", "12s")
        nodes.begin()
        nodes.wait_step(12)
        wait_for(lambda: copied(nodes), "copies of all ranks")
        lose(nodes, 2)
        assert nodes.codes() == [75, 75, -signal.SIGKILL], nodes.transcript
        [(step, _)] = layout.list_iterations(nodes.run_dir / "checkpoints")
        assert step >= 4, nodes.transcript
        shutil.rmtree(nodes.memory_of(2))
        nodes.begin()
        assert nodes.codes()[3:] == [0, 0, 0], nodes.transcript
        assert nodes.resumed()[1] == step
        assert [end_of(nodes, rank) for rank in range(3)] == [end_of(alone, rank) for rank in range(3)]
    finally:
        nodes.dispose()
        alone.dispose()


@pytest.mark.slow
def test_without_a_copy_nothing_is_made_up(held: NodesJob) -> None:
    """The copies of the lost node's ranks are damaged: the others keep their memory, and say so."""
    held.options = (*held.options, "--node-wait", "12s")
    held.begin()
    held.wait_held(AT)
    wait_copied(held, AT)
    for note in held.memory_of(0).glob("peers/*/*/copy.json"):
        told = json.loads(note.read_text())
        if told["rank"] == 3:
            os.truncate(note.parent / "opt.safetensors", 16)
    lose(held, 1)
    assert held.codes() == [75, -signal.SIGKILL], held.transcript
    assert not layout.list_iterations(held.run_dir / "checkpoints")
    assert f"step {AT} could not be saved without the missing nodes" in held.transcript
    assert f"cannot save step {AT}, of which a node is lost: " in held.transcript
    held.assert_clean(".node0", ".node1")
