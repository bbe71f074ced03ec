"""One command starts the agents of all hosts by ssh, and ends as they do."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support import sshd
from tests.support.agents import NodesJob, free_port
from tests.support.ctl import ftctl
from tests.support.harness import FtJob
from tests.support.leftovers import carriers
from tests.support.sshd import SshHosts
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long
TOKEN = "a token that nobody else may see"


@pytest.fixture
def hosts(nodes: NodesJob, tmp_path: Path) -> Iterator[SshHosts]:
    yield from sshd.made(tmp_path / "ssh", ("ada", "bob"), nodes.tag)


def start(job: NodesJob, hosts: SshHosts, *options: str, names: str = "ada,bob", step_time: float = 0.0) -> None:
    """Start the one command."""
    meet = ("--rdzv-endpoint", f"127.0.0.1:{job.port}", "--grace", "3s", "--preload", "os")
    words = (*job.words, "--step-time", str(step_time))
    job.start("--hosts", names, "--ssh", hosts.command, *meet, *options, env={"FTLAUNCH_TOKEN": TOKEN}, ranks=job.ranks,
              args=("--out", str(job.out), *words))  # fmt: skip


def agents(job: NodesJob) -> list[psutil.Process]:
    """The agents that ssh has started: not the command, nor the other end of a session."""
    found = []
    for pid in carriers(job.tag):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            parent = process.parent()
            ours = parent is not None and "ftlaunch.nodes.agent.hosts.remote" in parent.cmdline()
            if ours and any(word.startswith("--node-rank=") for word in process.cmdline()):
                found.append(process)
    return found


def test_two_hosts_train_to_what_one_machine_trains_to(nodes: NodesJob, hosts: SshHosts, alone: FtJob) -> None:
    start(nodes, hosts)
    assert nodes.wait() == 0, nodes.transcript
    nodes.assert_same_end(alone)
    assert "[ada] ftlaunch: " in nodes.stderr, nodes.transcript
    assert "[bob] ftlaunch: " in nodes.stderr
    nodes.assert_clean()


@pytest.mark.slow
def test_sigterm_to_the_command_stops_the_job_with_a_checkpoint(nodes: NodesJob, hosts: SshHosts, alone: FtJob) -> None:
    start(nodes, hosts, step_time=0.1)
    nodes.wait_step(5)
    assert len(agents(nodes)) == 2
    nodes.supervisor.send_signal(signal.SIGTERM)
    assert nodes.wait() == 75, nodes.transcript
    assert "SIGTERM: passed on to the agents" in nodes.stderr
    assert nodes.events("checkpoint_committed"), nodes.transcript
    wait_for(lambda: not carriers(nodes.tag), "the end of all processes")
    start(nodes, hosts)
    assert nodes.wait() == 0, nodes.transcript
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@pytest.mark.slow
def test_an_agent_that_is_killed_is_started_again(nodes: NodesJob, hosts: SshHosts, alone: FtJob) -> None:
    start(nodes, hosts, "--node-wait", "60s", step_time=0.1)
    nodes.wait_step(5)
    (agent,) = [one for one in agents(nodes) if "--node-rank=1" in one.cmdline()]
    assert TOKEN not in "".join(agent.environ().values()) + "".join(agent.cmdline())
    agent.kill()
    assert nodes.wait() == 0, nodes.transcript
    assert "the agent of bob was killed (SIGKILL)" in nodes.stderr
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@pytest.mark.slow
def test_nothing_is_left_on_any_host_when_the_command_is_killed(nodes: NodesJob, hosts: SshHosts) -> None:
    start(nodes, hosts, step_time=0.1)
    nodes.wait_step(5)
    assert len(agents(nodes)) == 2
    nodes.supervisor.kill()
    nodes.supervisor.wait()
    wait_for(lambda: not carriers(nodes.tag), "the end of all processes")
    assert nodes.events("job_stopped"), nodes.transcript
    (committed,) = nodes.events("checkpoint_committed")
    assert committed["why"] == "stop"


@pytest.mark.slow
def test_a_host_that_comes_later_is_reached(nodes: NodesJob, hosts: SshHosts, alone: FtJob) -> None:
    hosts.shut("bob")
    start(nodes, hosts)
    nodes.wait_said(0, "cannot reach bob: ssh: connect to host 127.0.0.1 port")
    wait_for(lambda: len(agents(nodes)) == 1, "the agent of ada")
    hosts.boot("bob")
    assert nodes.wait() == 0, nodes.transcript
    assert "bob is reached again: starting its agent" in nodes.stderr
    nodes.assert_same_end(alone)


def test_a_key_that_no_host_knows_starts_nothing(nodes: NodesJob, hosts: SshHosts) -> None:
    hosts.use_wrong_key()
    start(nodes, hosts)
    assert nodes.wait() == 2, nodes.transcript
    for name in ("ada", "bob"):
        assert f"cannot reach {name}: " in nodes.stderr
    assert "Permission denied (publickey)" in nodes.stderr
    assert "cannot start: no host can be reached" in nodes.stderr
    nodes.assert_clean()


@pytest.mark.slow
def test_a_detached_command_returns_when_the_job_has_begun_and_says_what_cannot_be(
    nodes: NodesJob, hosts: SshHosts
) -> None:
    nodes.words = ("--steps", "10000")
    start(nodes, hosts, "--detach", step_time=0.1)
    assert nodes.wait() == 0, nodes.transcript
    assert nodes.stdout == f"{nodes.job_id}\n"
    assert len(nodes.events("job_started")) == 1
    (log,) = nodes.run_dir.glob("terminal.*.log")
    start(nodes, hosts, "--detach", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    assert nodes.wait() == 2
    assert nodes.stdout == ""
    assert "cannot start: another agent of this job has --node-rank 0 on this machine" in nodes.stderr
    assert list(nodes.run_dir.glob("*terminal*")) == [log]
    assert ftctl("stop", str(nodes.run_dir), cwd=nodes.home)[0] == 0
    wait_for(lambda: nodes.events("job_stopped"), "the end of the job")
    wait_for(lambda: not carriers(nodes.tag), "the end of its processes")
    assert "[ada] ftlaunch: " in log.read_text()
