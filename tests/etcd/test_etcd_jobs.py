"""Jobs of two nodes that meet in etcd, and know each other's address by nothing else."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.agents import PATIENT, NodesJob
from tests.support.etcd import EtcdCluster
from tests.support.harness import FtJob
from tests.support.leftovers import carriers

from ftlaunch.system.job_token import ETCD_PASSWORD, ETCD_USER

KILL_EVERY = 5.0  # seconds


@pytest.mark.long
def test_two_nodes_meet_in_etcd_and_train_to_what_one_node_trains_to(nodes: NodesJob, alone: FtJob) -> None:
    nodes.begin()
    assert nodes.codes() == [0, 0], nodes.transcript
    nodes.assert_same_end(alone)
    assert not (nodes.run_dir / "head").exists(), "nobody has claimed anything in the run dir"
    nodes.assert_clean()


@pytest.mark.slow
def test_a_killed_head_is_replaced_by_a_claim_in_etcd_and_the_ranks_run_on(nodes: NodesJob, alone: FtJob) -> None:
    nodes.options = (*nodes.options, *PATIENT)
    nodes.words = ("--steps", "30", "--step-time", "0.2")
    nodes.begin()
    nodes.wait_step(5)
    ranks, head = nodes.ranks_of(0) + nodes.ranks_of(1), nodes.head
    os.kill(head, signal.SIGKILL)
    nodes.wait_event("attempt_adopted")
    assert nodes.head != head
    assert nodes.ranks_of(0) + nodes.ranks_of(1) == ranks
    assert nodes.codes() == [0, 0], nodes.transcript
    assert len(nodes.events("attempt_started")) == 1
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@pytest.mark.slow
def test_a_frozen_head_is_ended_and_replaced(nodes: NodesJob, alone: FtJob) -> None:
    """It holds its port and its connections: that its sign in etcd goes on no more is what tells."""
    nodes.words = ("--steps", "30", "--step-time", "0.3")
    nodes.begin()
    nodes.wait_step(5)
    head = nodes.head
    os.kill(head, signal.SIGSTOP)
    nodes.wait_event("job_started", 2)
    nodes.wait_gone([head])
    assert nodes.codes() == [0, 0], nodes.transcript
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@contextmanager
def leaders_killed(cluster: EtcdCluster) -> Iterator[list[int]]:
    """Kill etcd's leader every five seconds, and start it again before the next; the list tells which were killed."""
    killed: list[int] = []
    end = threading.Event()

    def kill_on() -> None:
        while not end.wait(KILL_EVERY / 2):
            leader = cluster.leader()
            cluster.kill(leader)
            killed.append(leader)
            end.wait(KILL_EVERY / 2)
            cluster.start(leader)

    thread = threading.Thread(target=kill_on)
    thread.start()
    try:
        yield killed
    finally:
        end.set()
        thread.join()


@pytest.mark.slow
def test_etcds_leader_may_be_killed_every_five_seconds(nodes: NodesJob, alone: FtJob, cluster: EtcdCluster) -> None:
    """Each time etcd is gone for two seconds, as long as `--node-timeout`. Nothing is restarted, and all is saved."""
    nodes.words = ("--steps", "30", "--step-time", "0.7")
    nodes.begin("--storage-interval", "5")
    nodes.wait_step(1)
    with leaders_killed(cluster) as killed:
        assert nodes.codes() == [0, 0], nodes.transcript
    assert len(killed) >= 3, "the faults came too late"
    assert nodes.events("job_finished")[-1]["restarts"] == 0
    assert len(nodes.events("attempt_started")) == 1
    assert len(nodes.events("job_started")) == 1, "and the head stays"
    assert [one["step"] for one in nodes.events("checkpoint_committed")] == [5, 10, 15, 20, 25, 30]
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@pytest.mark.slow
def test_training_goes_on_without_any_etcd_and_ends_once_it_is_back(
    nodes: NodesJob, alone: FtJob, cluster: EtcdCluster
) -> None:
    """A rank that fails is restarted, too: the head hears all nodes, so none of them has another head."""
    nodes.words = ("--steps", "30", "--step-time", "0.3")
    nodes.options = (*nodes.options, "--node-timeout", "8s")  # nobody is to fall silent on a busy machine
    nodes.env["FAULT"] = "sigkill 3 15"
    nodes.begin()
    nodes.wait_step(5)
    for member in range(3):
        cluster.kill(member)
    nodes.wait_step(25)
    assert nodes.fired() == ["sigkill 3 0"]
    for member in range(3):
        cluster.start(member)
    assert nodes.codes() == [0, 0], nodes.transcript
    assert nodes.events("job_finished")[-1]["restarts"] == 1
    assert len(nodes.events("attempt_started")) == 2
    assert len(nodes.events("job_started")) == 1, "and the head stays"
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@pytest.mark.slow
def test_a_password_gets_to_head_and_saver_and_to_nobody_else(
    nodes: NodesJob, alone: FtJob, guarded: EtcdCluster
) -> None:
    """Checkpoints are committed, so the saver could ask etcd who the head is."""
    nodes.etcd = guarded.endpoints
    nodes.env |= {ETCD_USER: "me", ETCD_PASSWORD: "5ecret"}
    nodes.words = ("--steps", "30", "--step-time", "0.1")
    nodes.begin("--storage-interval", "10")
    nodes.wait_step(1)
    for pid in nodes.ranks_of(0) + nodes.ranks_of(1):
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"FTLAUNCH_MEMORY_DIR" in environ
        assert b"5ecret" not in environ
    for pid in carriers(nodes.tag):
        assert b"5ecret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert nodes.codes() == [0, 0], nodes.transcript
    first, *_, last = [one["step"] for one in nodes.events("checkpoint_committed")]
    assert 10 <= first < last == 30
    assert "5ecret" not in nodes.transcript
    nodes.assert_same_end(alone)
    nodes.assert_clean()
