"""The hooks without a supervisor on several nodes: torchrun's agents, each a process of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.agents import free_port
from tests.support.harness import TINY
from tests.support.leftovers import alive, carriers
from tests.support.waiting import wait_for

from ftlaunch_contract.checkpoint import layout, verify
from ftlaunch_contract.protocol import memory_root

NODES, RANKS, STEPS = 2, 2, 30
SLOW = ("--steps", str(STEPS), "--step-time", "0.03")


class AloneNodes:
    """tiny.py under an agent of torchrun's for each of two nodes."""

    def __init__(self, home: Path) -> None:
        self.home, self.out, self.storage = home, home / "out", home / "checkpoints"
        self.tag = f"FT_TEST=nodes-{uuid.uuid4().hex}"
        self.agents: list[subprocess.Popen[bytes]] = []
        self.under: list[list[str]] = [[] for _ in range(NODES)]  # what each node's agent is run by

    def start(
        self, *args: str, ranks: int = RANKS, restarts: int = 0, dirs: tuple[str, str] = ("", ""), **env: str
    ) -> None:
        """dirs: below the checkpoint directory, for each node; equal where the storage is shared."""
        port, common = free_port(), {**os.environ, "FTLAUNCH_MEMORY_INTERVAL": "1", **env}
        common["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else ranks find the addresses of those before them
        name, _, value = self.tag.partition("=")
        self.agents = [
            subprocess.Popen(
                [*self.under[node], sys.executable, "-m", "torch.distributed.run",
                 "--nnodes", str(NODES), "--nproc-per-node", str(ranks), "--max-restarts", str(restarts),
                 "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "test",
                 "--rdzv-conf", f"is_host={int(node == 0)}", "--local-addr", "127.0.0.1", "--monitor-interval", "0.1",
                 "--shutdown-timeout", "8", str(TINY), "--out", str(self.out), *args],
                cwd=self.home,
                env={**common, name: value, **self.places(node, dirs[node])},
                stdout=subprocess.DEVNULL,
                stderr=self.log(node).open("w"),
            )
            for node in range(NODES)
        ]  # fmt: skip

    def places(self, node: int, below: str) -> dict[str, str]:
        """Where a node's checkpoints are, as its environment says it."""
        return {"FTLAUNCH_CHECKPOINT_DIR": str(self.storage / below)}

    def log(self, node: int) -> Path:
        return self.home / f"stderr_{node}"

    def said(self) -> str:
        return "".join(self.log(node).read_text(errors="replace") for node in range(NODES))

    def wait(self) -> list[int]:
        return [agent.wait(90) for agent in self.agents]

    def losses(self, rank: int = 0) -> list[str]:
        path = self.out / f"loss_{rank}.csv"
        return path.read_text().splitlines() if path.exists() else []

    def wait_loss(self, count: int) -> None:
        wait_for(lambda: len(self.losses()) >= count, f"{count} steps")

    def rank(self, rank: int) -> tuple[int, subprocess.Popen[bytes]]:
        """The process of a rank, and the agent that has started it."""
        [pid] = set(carriers(self.tag)) & set(carriers(f"RANK={rank}"))
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return pid, next(agent for agent in self.agents if agent.pid == parent)

    def finals(self) -> list[str]:
        return [(self.out / f"final_{rank}").read_text() for rank in range(NODES * RANKS)]

    def newest(self) -> int:
        (step, directory), *_ = layout.list_iterations(self.storage)
        verify.verify(directory)
        assert layout.list_incomplete(self.storage) == []
        return step

    def assert_clean(self) -> None:
        wait_for(lambda: not carriers(self.tag), "the end of all processes", 10.0)
        pids = [str(agent.pid) for agent in self.agents]
        assert [path for path in memory_root(os.getuid()).glob("agent-*") if path.name.split("-")[1] in pids] == []


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[AloneNodes]:
    job = AloneNodes(tmp_path)
    yield job
    for pid in carriers(job.tag):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> AloneNodes:
    """A job run without a fault to its end."""
    job = AloneNodes(tmp_path_factory.mktemp("calm"))
    job.start("--steps", str(STEPS))
    assert job.wait() == [0, 0], job.said()
    assert job.newest() == STEPS
    job.assert_clean()
    return job


@pytest.mark.slow
def test_a_killed_rank_costs_no_step(nodes: AloneNodes, calm: AloneNodes) -> None:
    """torchrun starts the ranks of both nodes again: all go on from the step that both nodes hold in memory."""
    nodes.start(*SLOW, restarts=3, FAULT="sigkill 2 12", FTLAUNCH_STORAGE_INTERVAL="off")
    assert nodes.wait() == [0, 0], nodes.said()
    assert (nodes.out / "fired").read_text() == "sigkill 2 0\n"
    assert "all nodes hold step 12 in memory" in nodes.said()
    for rank in range(NODES * RANKS):
        assert nodes.losses(rank) == calm.losses(rank), "no step was made twice, and none differs"
    assert nodes.finals() == calm.finals()
    assert nodes.newest() == STEPS
    nodes.assert_clean()


@pytest.mark.slow
def test_a_node_without_memory_takes_all_back_to_the_checkpoint(nodes: AloneNodes, calm: AloneNodes) -> None:
    nodes.start(*SLOW, restarts=3, FTLAUNCH_STORAGE_INTERVAL="5")
    wait_for(lambda: layout.list_iterations(nodes.storage), "a checkpoint")
    step = layout.list_iterations(nodes.storage)[0][0]
    nodes.wait_loss(step + 3)
    (pid, agent), (beside, _) = nodes.rank(2), nodes.rank(3)
    agent.send_signal(signal.SIGSTOP)  # it starts no ranks yet
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid) and not alive(beside), "the end of the node's ranks")
    [memory] = memory_root(os.getuid()).glob(f"agent-{agent.pid}-*")
    shutil.rmtree(memory)
    agent.send_signal(signal.SIGCONT)
    assert nodes.wait() == [0, 0], nodes.said()
    assert "in memory: the job goes on" not in nodes.said()
    again = {tuple(resumed(nodes.losses(rank))) for rank in range(NODES * RANKS)}
    assert len(again) == 1, "all ranks of both nodes resumed at the same step"
    [[first]] = again
    assert first % 5 == 0
    assert first >= step
    for rank in range(NODES * RANKS):
        assert sorted(set(nodes.losses(rank)), key=_step) == calm.losses(rank)
    assert nodes.finals() == calm.finals()
    nodes.assert_clean()


@pytest.mark.slow
def test_sigterm_to_one_rank_of_one_node_stops_both_at_a_step_that_is_saved(
    nodes: AloneNodes, calm: AloneNodes
) -> None:
    nodes.start(*SLOW)
    nodes.wait_loss(6)
    os.kill(nodes.rank(3)[0], signal.SIGTERM)
    nodes.wait()
    step = nodes.newest()
    assert {len(nodes.losses(rank)) for rank in range(NODES * RANKS)} == {step}
    assert 6 <= step < STEPS
    nodes.assert_clean()
    nodes.start(*SLOW)
    assert nodes.wait() == [0, 0], nodes.said()
    for rank in range(NODES * RANKS):
        assert nodes.losses(rank) == calm.losses(rank)
    assert nodes.finals() == calm.finals()
    nodes.assert_clean()


@pytest.mark.slow
def test_nodes_that_share_no_checkpoint_directory_are_refused_on_both(nodes: AloneNodes) -> None:
    nodes.start(*SLOW, ranks=1, dirs=("a", "b"))
    assert nodes.wait() == [1, 1]
    for node in range(NODES):
        said = nodes.log(node).read_text()
        assert "the nodes share no checkpoint directory: node 1 does not see what node 0 writes" in said
    assert nodes.losses() == []
    nodes.assert_clean()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a directory read-only: run as root")
def test_a_node_that_cannot_write_its_shards_fails_the_save_on_all_and_the_training_goes_on(
    nodes: AloneNodes, calm: AloneNodes
) -> None:
    nodes.storage.mkdir()
    read_only = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    nodes.under[1] = ["unshare", "--mount", "sh", "-c", read_only, str(nodes.storage)]
    nodes.start(*SLOW, FTLAUNCH_STORAGE_INTERVAL="10")
    assert nodes.wait() == [0, 0], nodes.said()
    assert "Read-only file system" in nodes.said()
    assert "rank 0 cannot save step 10" in nodes.said()
    assert "another node could not write its shards" in nodes.said()
    assert layout.list_iterations(nodes.storage) == layout.list_incomplete(nodes.storage) == []
    assert nodes.finals() == calm.finals()
    nodes.assert_clean()


@pytest.mark.slow
def test_sigterm_where_a_rank_is_stuck_ends_both_nodes_within_the_grace(nodes: AloneNodes) -> None:
    """No boundary is reached, so the nodes cannot agree on a step: they leave, and the checkpoint counts."""
    nodes.start(*SLOW, FAULT="gil 3 8", FTLAUNCH_GRACE="4", FTLAUNCH_STORAGE_INTERVAL="5")
    wait_for((nodes.out / "fired").exists, "the fault")
    nodes.wait_loss(8)
    wait_for(lambda: layout.list_iterations(nodes.storage), "a checkpoint")
    for agent in nodes.agents:
        agent.terminate()
    nodes.wait()
    assert "no step boundary was reached: this node leaves" in nodes.said()
    assert nodes.newest() == 5
    nodes.assert_clean()


def resumed(losses: list[str]) -> list[int]:
    """The steps at which a rank has begun to make steps for a second time."""
    steps = [_step(line) for line in losses]
    return [now for before, now in pairwise(steps) if now <= before]


def _step(line: str) -> int:
    return int(line.split()[0])
