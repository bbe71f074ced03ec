"""Copies of snapshots on other nodes: a machine is lost, and the job goes on from the memory of the others.

In these jobs the fault holds all ranks in the body of a step, so that what the test does falls into that step. Taken
out: without copies each of them goes on from storage, or from the beginning.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.nodes.test_lost_nodes import assert_lost, lose
from tests.support.agents import PATIENT, NodesJob
from tests.support.ctl import ftctl
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

AT = 16
SHAPES = Path(__file__).parents[1] / "jobs" / "shapes.py"
NAPS = ("--step-time", "0.1")  # the node is lost in mid-job


def wait_copied(nodes: NodesJob, step: int) -> None:
    """Wait until every rank's snapshot of a step is in the memory of another node, too."""

    wait_for(lambda: copied(nodes, step), f"copies of step {step}")


def copied(nodes: NodesJob, step: int | None = None) -> bool:
    """Whether there are copies of all ranks' snapshots: of that step, or of any."""
    found = set()
    for note in [note for node in range(nodes.nodes) for note in notes(nodes.memory_of(node))]:
        try:
            kept = json.loads(note.read_text())
        except FileNotFoundError:  # another one takes its place
            continue
        if step in (None, kept["step"]):
            found.add(kept["rank"])
    return len(found) == nodes.nodes * nodes.ranks


def notes(memory: Path) -> list[Path]:
    """What says of each copy in a node's memory that it is whole."""
    return list(memory.glob("peers/*/*/copy.json"))


@pytest.mark.long
def test_a_standby_goes_on_from_copies_in_the_memory_of_another_node(nodes: NodesJob, alone: FtJob) -> None:
    nodes.env["FAULT"] = f"deaf 3 {AT}"
    nodes.options = (*nodes.options, "--storage-interval", "off", "--peer-interval", "4")
    nodes.begin()
    nodes.wait_held(AT)
    wait_copied(nodes, AT)
    nodes.agent()
    nodes.wait_joined(3)
    lose(nodes, 1)
    assert nodes.codes() == [0, -signal.SIGKILL, 0], nodes.transcript
    assert_lost(nodes, 1)
    (fetched,) = nodes.events("fetched")
    assert (fetched["step"], fetched["error"]) == (AT, "")
    assert {source["node"] for source in fetched["nodes"][0]["sources"]} == {0}
    assert nodes.resumed() == ("peer", AT, 0)
    recovery = json.loads((nodes.run_dir / "recovery.json").read_text())
    assert (recovery["source"], recovery["fetched"], recovery["done"]) == ("peer", fetched["nodes"], True)
    assert_planned_before_the_restart(nodes, AT, recovery)
    nodes.assert_same_end(alone)
    nodes.assert_clean(".node1")


def assert_planned_before_the_restart(nodes: NodesJob, step: int, recovery: dict[str, Any]) -> None:
    """Of two nodes with two ranks each the second one was lost; the first one holds all that its ranks need."""
    planned = {
        "lost": "2, 3",
        "sources": [{"ranks": "0, 1", "from": "own memory"}, {"ranks": "2, 3", "from": "copies", "keeper": 0}],
        "replicas": [0],
    }
    *_, told = nodes.events("restore_planned")
    assert planned | {"step": step, "source": "peer"} == {key: told[key] for key in (*planned, "step", "source")}
    *_, started = nodes.events("attempt_started")
    *_, fetched = nodes.events("fetched")
    assert told["mono"] < started["mono"] < fetched["mono"]
    assert planned == {key: recovery[key] for key in planned}
    (supplied,) = nodes.events("fetch_planned")
    *_, resumed = nodes.events("resumed")
    assert started["mono"] < supplied["mono"] <= fetched["mono"] < resumed["mono"], "known before a rank goes on"
    assert [node["sources"] for node in supplied["nodes"]] == [node["sources"] for node in fetched["nodes"]]
    code, shown, complaint = ftctl("recovery", nodes.run_dir, cwd=nodes.home)
    assert (code, complaint) == (0, "")
    first, own, lost, *parts = shown.splitlines()
    assert first == f"attempt {started['attempt']} resumes from the memory of other nodes at step {step}"
    assert own == "  ranks 0, 1: the memory of their own node"
    assert lost == "  ranks 2, 3: lost; their copies from node 0; what replicas hold alike from node 0"
    assert parts and all("from node 0, " in part and part.endswith("brought to node 1") for part in parts)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        *("hsdp", "hsdp apart", "groups"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("hsdp apart across", "pairs")),
    ],
)
def test_replicas_supply_the_shards_of_a_lost_node(tmp_path: Path, kind: str) -> None:
    """Two nodes hold the same shards: the copies hold none of them, and the map says who supplies them.

    groups: the first ranks of both nodes hold one model alike, and the second ones another. Taken out: where each rank
    saves its own, the copies hold both models once more. apart: the nodes hold other values of the shards, and the
    copies hold them. Taken out: without samples of the values the lost node's ranks go on with those of the first one.
    across: each replica lies on both nodes, whose ranks find by themselves that they hold other values.
    pairs: the meshes of the nodes are two, and the copies hold all that is on them.
    """
    shape, *apart = kind.split()
    are_replicas = kind in ("hsdp", "groups")
    words = ("--kind", shape, "--steps", "60", *(f"--{word}" for word in apart))
    for name in ("alone", "nodes"):
        (tmp_path / name).mkdir()
    alone, nodes = FtJob(tmp_path / "alone"), NodesJob(tmp_path / "nodes")
    try:
        alone.start(script=SHAPES, args=("--out", str(alone.out), *words), ranks=4)
        assert alone.wait() == 0, alone.stderr
        nodes.script, nodes.words = SHAPES, (*words, *NAPS)
        nodes.options = (*nodes.options, "--storage-interval", "off", "--peer-interval", "4")
        nodes.begin()
        nodes.wait_joined(2)
        nodes.agent()
        nodes.wait_joined(3)
        nodes.wait_step(12)
        wait_for(lambda: copied(nodes), "copies of all ranks")
        held = [json.loads(note.read_text())["present"] for note in notes(nodes.memory_of(0))]
        assert held and all((present["model"] == []) is are_replicas for present in held), "the shards of ranks 2 and 3"
        assert kind == "hsdp" or all(present["opt"] for present in held), "their own"
        lose(nodes, 1)
        assert nodes.codes() == [0, -signal.SIGKILL, 0], nodes.transcript
        (fetched,) = nodes.events("fetched")
        source, step, _ = nodes.resumed()
        assert (source, step) == ("peer", fetched["step"]), nodes.transcript
        recovery = json.loads((nodes.run_dir / "recovery.json").read_text())
        assert_planned_before_the_restart(nodes, step, recovery)
        supplies = recovery["fetched"][0]["sources"]
        shards = {(part["rank"], part["of"]) for part in supplies if part["group"] == "model"}
        assert shards == ({(2, 0), (3, 1)} if are_replicas else {(2, 2), (3, 3)}), "from a replica, or else a copy"
        assert nodes.events("resume_differs") == []
        assert [end_of(nodes, rank) for rank in range(4)] == [end_of(alone, rank) for rank in range(4)]
        nodes.assert_clean(".node1")
    finally:
        nodes.dispose()
        alone.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_new_head_knows_of_the_copies(nodes: NodesJob, alone: FtJob, lost: int) -> None:
    nodes.env["FAULT"] = f"deaf 3 {AT}"
    nodes.options = (*nodes.options, *PATIENT, "--storage-interval", "10", "--peer-interval", "4")
    nodes.begin()
    nodes.wait_held(AT)
    wait_copied(nodes, AT)
    nodes.agent()
    nodes.wait_joined(3)
    head = nodes.head
    os.kill(head, signal.SIGKILL)
    nodes.wait_event("attempt_adopted")
    lose(nodes, lost)
    codes = nodes.codes()
    assert codes.count(0) == 2, nodes.transcript
    assert nodes.resumed() == ("peer", AT, 0), nodes.transcript
    nodes.assert_same_end(alone)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp", "tp"])
def test_shards_of_a_lost_node_come_from_its_buddy(tmp_path: Path, kind: str) -> None:
    """Three nodes: the copies are whole shards, and the last place's buddy is the first."""
    words = ("--kind", kind, "--steps", "60")
    for name in ("alone", "nodes"):
        (tmp_path / name).mkdir()
    alone = FtJob(tmp_path / "alone")
    nodes = NodesJob(tmp_path / "nodes", nodes=3, ranks=1)
    try:
        alone.start(script=SHAPES, args=("--out", str(alone.out), *words), ranks=3)
        assert alone.wait() == 0, alone.stderr
        nodes.script, nodes.words = SHAPES, (*words, *NAPS)
        nodes.options = (*nodes.options, "--storage-interval", "off", "--peer-interval", "4")
        nodes.begin()
        nodes.wait_joined(3)
        nodes.agent()  # only now: of four agents the last one to join stands by
        nodes.wait_joined(4)
        nodes.wait_step(12)
        wait_for(lambda: copied(nodes), "copies of all ranks")
        lose(nodes, 2)
        assert nodes.codes() == [0, 0, -signal.SIGKILL, 0], nodes.transcript
        (fetched,) = nodes.events("fetched")
        source, step, lost = nodes.resumed()
        assert (source, step) == ("peer", fetched["step"]), nodes.transcript
        assert step >= 4 and lost <= 8, nodes.transcript
        assert [end_of(nodes, rank) for rank in range(3)] == [end_of(alone, rank) for rank in range(3)]
        nodes.assert_clean(".node2")
    finally:
        nodes.dispose()
        alone.dispose()


@pytest.mark.slow
def test_replicas_that_differ_are_restored_from_storage_by_as_many_ranks_only(tmp_path: Path) -> None:
    """Both nodes save their shards under the same keys; a rank takes its own node's.

    Taken out: where the lowest rank's count, the ranks of the second node go on with those of the first one, and one
    node goes on with them, too.
    """
    nodes = NodesJob(tmp_path)
    try:
        nodes.script, nodes.words = SHAPES, ("--kind", "hsdp", "--apart", "--steps", "4")
        nodes.options = (*nodes.options, "--max-restarts", "0")
        nodes.begin()
        assert nodes.codes() == [0, 0], nodes.transcript
        before = [end_of(nodes, rank) for rank in range(4)]
        assert before[0]["weights"] != before[2]["weights"], "the replicas differ"
        nodes.words = ("--kind", "hsdp", "--apart", "--steps", "6")
        nodes.begin()
        assert nodes.codes() == [0] * 4, nodes.transcript
        assert nodes.resumed()[:2] == ("storage", 4), nodes.transcript
        begin = [json.loads((nodes.out / f"begin_{rank}.json").read_text()) for rank in range(4)]
        assert [(one["digest"], one["rng"]) for one in begin] == [(one["digest"], one["rng"]) for one in before]
        assert nodes.events("resume_differs") == []
        nodes.range = "1"
        nodes.words = ("--kind", "hsdp", "--steps", "8")
        nodes.agent("--node-rank", "0")
        assert nodes.codes()[-1] != 0, nodes.transcript
        said = "".join(path.read_text() for path in (nodes.run_dir / "logs").rglob("*.log"))
        words = r"cannot restore `model\.[^`]*` on 2 ranks: ranks that were to hold the same of it"
        assert re.search(words, said), said
    finally:
        nodes.dispose()


def end_of(job: FtJob, rank: int) -> dict[str, object]:
    """What a rank of shapes.py held at its end."""
    told: dict[str, object] = json.loads((job.out / f"end_{rank}.json").read_text())
    return {name: value for name, value in told.items() if name != "from"}


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_copier_that_dies_is_followed_by_another_one(nodes: NodesJob, alone: FtJob, signum: int) -> None:
    """Taken out: without a look at it, a copier that is stopped sends no copy any more."""
    nodes.env["FAULT"] = f"deaf 3 {AT}"
    nodes.options = (*nodes.options, "--storage-interval", "off", "--peer-interval", "4")
    nodes.begin()
    nodes.wait_held(AT)
    copiers = {one.pid: one for one in psutil.process_iter() if is_copier_of(one, nodes)}
    assert len(copiers) == 2
    wait_copied(nodes, AT)
    for copier in copiers.values():
        copier.send_signal(signum)
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in copiers), "the end of the copiers")
    nodes.agent()
    nodes.wait_joined(3)
    wait_copied(nodes, AT)
    lose(nodes, 1)
    assert nodes.codes() == [0, -signal.SIGKILL, 0], nodes.transcript
    assert nodes.resumed() == ("peer", AT, 0)
    nodes.assert_same_end(alone)


def is_copier_of(process: psutil.Process, job: NodesJob) -> bool:
    """Whether a process is the copier of one of a job's agents."""
    try:
        parents = {agent.pid for agent in job.supervisors}
        return "ftlaunch.nodes.peers.copier" in process.cmdline() and process.ppid() in parents
    except psutil.Error:
        return False


@pytest.mark.slow
def test_a_node_and_the_one_that_keeps_its_copies_are_lost_together(nodes: NodesJob, alone: FtJob) -> None:
    """Memory has not all that is needed: storage is asked."""
    nodes.env["FAULT"] = f"deaf 3 {AT}"
    nodes.options = (*nodes.options, "--storage-interval", "10", "--peer-interval", "4", "--node-wait", "60s")
    nodes.begin()
    nodes.wait_held(AT)
    assert nodes.wait_event("checkpoint_committed")["step"] == 10
    wait_copied(nodes, AT)
    lost = 1 - nodes.speaker
    for note in notes(nodes.memory_of(nodes.speaker)):
        note.unlink()  # the buddy's copies are gone: what a machine that was begun anew has
    for process in [one for one in psutil.process_iter() if is_copier_of(one, nodes)]:
        process.kill()  # a copier knows what it has, whatever lies on disk
    lose(nodes, lost)
    nodes.agent()
    codes = nodes.codes()
    assert codes.count(0) == 2, nodes.transcript
    assert nodes.resumed()[:2] == ("storage", 10)
    nodes.assert_same_end(alone)
