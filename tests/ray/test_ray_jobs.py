"""Ray places the agents of a job, and replaces them; the job ends as the undisturbed one, bit for bit."""

from __future__ import annotations

import signal

import pytest
from tests.support.agents import NodesJob
from tests.support.harness import FtJob
from tests.support.ray_cluster import RayCluster, lose
from tests.support.waiting import wait_for

TOKEN = "a token that nobody else may see"


def start(job: NodesJob, cluster: RayCluster, *options: str, step_time: float = 0.0) -> None:
    """Start the one command, as a user does: a driver of the Ray cluster."""
    env = {"RAY_ADDRESS": cluster.address, "FTLAUNCH_TOKEN": TOKEN, "GLOO_SOCKET_IFNAME": "lo"}
    job.start("--nnodes", "2", "--grace", "3s", "--preload", "os", *options, env=env, ranks=job.ranks,
              args=("--out", str(job.out), *job.words, "--step-time", str(step_time)))  # fmt: skip


def wait_standby(job: NodesJob) -> None:
    """A node that stands by can take another one's place."""
    wait_for(lambda: "this node stands by" in job.stderr, "a node that stands by")


def wait_empty(cluster: RayCluster) -> None:
    """Nothing of the job is left on the nodes of the cluster, which go on."""
    wait_for(lambda: not cluster.others(), "the end of all processes of the job", 20.0)


@pytest.mark.slow
def test_two_nodes_train_to_what_one_machine_trains_to(nodes: NodesJob, cluster: RayCluster, alone: FtJob) -> None:
    start(nodes, cluster)
    assert nodes.wait() == 0, nodes.transcript
    nodes.assert_same_end(alone)
    wait_empty(cluster)
    assert nodes.memories() == []


@pytest.mark.slow
def test_sigterm_to_the_command_stops_the_job_with_a_checkpoint(
    nodes: NodesJob, cluster: RayCluster, alone: FtJob
) -> None:
    """Taken out: `_NOT_OURS` (agents then have the OMP_NUM_THREADS that Ray has set for its actor)."""
    start(nodes, cluster, "--spare", "1", step_time=0.3)
    nodes.wait_step(5)
    wait_standby(nodes)
    assert len(cluster.agents()) == 3
    for agent in cluster.agents().values():
        assert "OMP_NUM_THREADS" not in agent.environ()
        assert TOKEN not in "".join(agent.environ().values()) + "".join(agent.cmdline())
    nodes.supervisor.send_signal(signal.SIGTERM)
    assert nodes.wait() == 75, nodes.transcript
    assert "SIGTERM: passed on to the agents" in nodes.stderr
    assert nodes.events("checkpoint_committed"), nodes.transcript
    wait_empty(cluster)
    start(nodes, cluster)
    assert nodes.wait() == 0, nodes.transcript
    nodes.assert_same_end(alone)


@pytest.mark.long
def test_a_node_whose_raylet_is_killed_is_replaced(nodes: NodesJob, cluster: RayCluster, alone: FtJob) -> None:
    """The agent there is told to leave, and the standby takes its place: no step is lost."""
    start(nodes, cluster, "--spare", "1", step_time=0.5)
    nodes.wait_step(5)
    wait_standby(nodes)
    raylet, agent = cluster.agent_of(nodes.ranks_of(1))
    cluster.kill(raylet)
    nodes.wait_gone([agent.pid])
    assert nodes.wait() == 0, nodes.transcript
    assert "is lost: " in nodes.stderr, nodes.transcript
    assert len(nodes.events("attempt_started")) == 2, nodes.transcript
    assert nodes.resumed()[2] == 0, nodes.transcript
    nodes.assert_same_end(alone)


@pytest.mark.slow
def test_a_machine_that_dies_is_replaced(nodes: NodesJob, cluster: RayCluster, alone: FtJob) -> None:
    start(nodes, cluster, "--spare", "1", step_time=0.3)
    nodes.wait_step(5)
    wait_standby(nodes)
    raylet, agent = cluster.agent_of(nodes.ranks_of(1))
    lost = lose(agent)
    cluster.kill(raylet)
    nodes.wait_gone(lost)
    assert nodes.wait() == 0, nodes.transcript
    assert len(nodes.events("attempt_started")) == 2, nodes.transcript
    nodes.assert_same_end(alone)


@pytest.mark.slow
def test_a_node_that_ray_drains_is_left_before_it_goes(nodes: NodesJob, cluster: RayCluster, alone: FtJob) -> None:
    start(nodes, cluster, "--spare", "1", step_time=0.3)
    nodes.wait_step(5)
    wait_standby(nodes)
    raylet, agent = cluster.agent_of(nodes.ranks_of(1))
    cluster.drain(raylet)
    nodes.wait_gone([agent.pid])
    assert cluster.agents(), nodes.transcript
    assert nodes.wait() == 0, nodes.transcript
    assert "away: its agent is told to leave" in nodes.stderr, nodes.transcript
    assert len(nodes.events("attempt_started")) == 2, nodes.transcript
    assert nodes.resumed()[2] == 0, nodes.transcript
    nodes.assert_same_end(alone)


@pytest.mark.slow
def test_an_agent_that_is_killed_is_started_again(nodes: NodesJob, cluster: RayCluster, alone: FtJob) -> None:
    start(nodes, cluster, "--node-wait", "60s", step_time=0.3)
    nodes.wait_step(5)
    _, agent = cluster.agent_of(nodes.ranks_of(1))
    agent.kill()
    assert nodes.wait() == 0, nodes.transcript
    assert "was killed (SIGKILL)" in nodes.stderr, nodes.transcript
    assert nodes.resumed()[0] == "memory", nodes.transcript
    nodes.assert_same_end(alone)


@pytest.mark.slow
def test_an_actor_that_is_killed_stops_a_job_that_has_no_spare_node(
    nodes: NodesJob, cluster: RayCluster, alone: FtJob
) -> None:
    """Its agent is told to leave, and nobody can take its place: all state is saved."""
    start(nodes, cluster, step_time=0.3)
    nodes.wait_step(5)
    cluster.actor_of(nodes.ranks_of(1)).kill()
    assert nodes.wait() == 75, nodes.transcript
    wait_empty(cluster)
    start(nodes, cluster)
    assert nodes.wait() == 0, nodes.transcript
    nodes.assert_same_end(alone)


@pytest.mark.slow
def test_an_agent_is_placed_anew_on_another_node(nodes: NodesJob, cluster: RayCluster, alone: FtJob) -> None:
    """Without a spare node: the job waits until Ray has one."""
    cluster.kill(cluster.raylets[2])
    start(nodes, cluster, "--node-wait", "60s", step_time=0.3)
    nodes.wait_step(5)
    raylet, agent = cluster.agent_of(nodes.ranks_of(1))
    lost = lose(agent)
    cluster.kill(raylet)
    nodes.wait_gone(lost)
    cluster.boot()
    assert nodes.wait() == 0, nodes.transcript
    assert "starting an agent on " in nodes.stderr, nodes.transcript
    nodes.assert_same_end(alone)


@pytest.mark.slow
def test_nothing_is_left_on_any_node_when_the_command_is_killed(nodes: NodesJob, cluster: RayCluster) -> None:
    """Taken out: the shell between (Ray's SIGKILL then ended the agents, and their head was left behind)."""
    start(nodes, cluster, "--spare", "1", step_time=0.3)
    nodes.wait_step(5)
    wait_standby(nodes)
    assert len(cluster.agents()) == 3
    assert cluster.others()
    nodes.supervisor.kill()
    nodes.supervisor.wait()
    wait_empty(cluster)
    assert nodes.events("job_stopped"), nodes.transcript
    assert nodes.events("checkpoint_committed")[-1]["why"] == "stop", nodes.transcript


@pytest.mark.slow
def test_a_cluster_with_too_few_nodes_is_told_of(nodes: NodesJob, cluster: RayCluster) -> None:
    start(nodes, cluster, "--spare", "2", "--node-wait", "5s")
    assert nodes.wait() == 2, nodes.transcript
    wanted = "4 nodes (2, and 2 spare) with 2 CPUs each are wanted, and the Ray cluster has 3 such ("
    assert f"ftlaunch: {wanted}" in nodes.stderr, nodes.transcript
    assert "; waiting for 5.0 s at most (`--node-wait`)" in nodes.stderr
    assert f"ftlaunch: cannot start: {wanted}" in nodes.stderr
    assert not cluster.agents()
