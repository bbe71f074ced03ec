"""A Slurm cluster on machines made of namespaces: a controller on the first machine, a slurmd on each other one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines import Machine, Machines, made, name_hosts
from tests.support.waiting import wait_for

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
_FREEZER = Path("/sys/fs/cgroup/freezer")
_NEEDED = ("slurmctld", "slurmd", "sbatch")

# A silent node counts as down after 10 s, and a requeued job waits for cred_expire and another second.
_CONFIG = """\
ClusterName=ft
SlurmctldHost={controller.name}({controller.address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=10
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool.%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.%n.pid
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=5
SlurmdTimeout=10
MessageTimeout=10
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SwitchType=switch/none
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=work Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""


class Slurm:
    """A cluster whose commands, such as sbatch, run on the controller's machine, which runs no jobs."""

    def __init__(self, home: Path, machines: Machines, proctrack: str) -> None:
        """Start the controller and all nodes, and wait until the nodes are idle.

        Args:
            home: a directory with a short path.
            machines: the machines, of which the first becomes the controller.
            proctrack: how Slurm finds the processes of a job, as the option ProctrackType names it.
        """
        self.home = home
        self.controller = machines[0]
        self.nodes = machines.all[1:]
        self._daemons: dict[str, Any] = {}
        self._env = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(home / "slurm.conf")}
        (home / "state").mkdir(parents=True)
        nodes = "\n".join(f"NodeName={node.name} NodeAddr={node.address} CPUs=2" for node in self.nodes)
        (home / "slurm.conf").write_text(
            _CONFIG.format(home=home, controller=self.controller, nodes=nodes, proctrack=proctrack)
        )
        (home / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        name_hosts(machines, {machine.name: machine for machine in machines.all}, home / "hosts")
        self._start(self.controller, "slurmctld")
        for node in self.nodes:
            self.boot(node)
        wait_for(lambda: self.states() == {node.name: "idle" for node in self.nodes}, "idle nodes")

    def boot(self, node: Machine) -> None:
        """Start the slurmd of a machine."""
        self._start(node, "slurmd", "-N", node.name)

    def kill_slurmd(self, node: Machine) -> None:
        """Kill the slurmd of a machine; processes that Slurm has started there survive."""
        self._daemons[node.name].send_signal(signal.SIGKILL)

    def _start(self, machine: Machine, program: str, *options: str) -> None:
        with (self.home / f"{program}.{machine.name}.log").open("ab") as log:
            command = (_where(program), "-D", "-f", self._env["SLURM_CONF"], *options)
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self._daemons[machine.name] = machine.start(command, self.home, self._env, **streams)

    def wait_removed(self, number: str, node: Machine) -> None:
        """Wait until Slurm has taken a node from a job, because it noticed a fault of the node."""
        wait_for(lambda: node.name not in self.nodes_of(number), f"job {number} without {node.name}", 60.0)

    def nodes_of(self, number: str) -> list[str]:
        """Return the names of the nodes that a job has."""
        return self.run("scontrol", "show", "hostnames", self.job(number)["NodeList"]).split()

    def run(self, *command: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
        """Run a command on the controller's machine, which must succeed; return its standard output."""
        there = (*self.controller.enter("-n", "-u", "-m", "-i", "-p"), "sh", "-c", 'cd "$0" && exec "$@"')
        asked = subprocess.run(
            [*there, str(cwd or self.home), *command], env={**self._env, **(env or {})}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=60.0,
        )  # fmt: skip
        assert asked.returncode == 0, f"{command} ended with {asked.returncode}: {asked.stdout}{asked.stderr}"
        return asked.stdout

    def states(self) -> dict[str, str]:
        """Return the state of each node by Slurm's word; empty while the controller does not answer."""
        try:
            output = self.run("sinfo", "-h", "-N", "-p", "work", "-o", "%N %T")
        except AssertionError:
            return {}
        return dict(line.split() for line in output.splitlines())

    def job(self, number: str) -> dict[str, str]:
        """Return the fields that `scontrol show job` shows of a job."""
        words = self.run("scontrol", "show", "job", "-o", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)


@contextlib.contextmanager
def cluster(count: int, proctrack: str = "linuxproc") -> Iterator[Slurm]:
    """Yield a cluster of `count` nodes and a controller; skips the test if it cannot be made.

    The cluster's folder has a short name because Slurm makes sockets there, whose paths have 107 characters at most.

    Args:
        count: the number of nodes.
        proctrack: how Slurm finds the processes of a job. Most clusters use `cgroup`; only one such cluster can run
            here at a time, because cgroups belong to the host.
    """
    missing = [name for name in _NEEDED if shutil.which(name, path=_PATH) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)} here (Debian: slurmctld, slurmd, slurm-client)")
    if os.getuid() != 0:
        pytest.skip("slurmd runs as root only: run as root")
    if proctrack == "cgroup" and not os.access(_FREEZER, os.W_OK):
        pytest.skip(f"there is no {_FREEZER} to write to: run as root, on a kernel with cgroup v1")
    with contextlib.ExitStack() as ends:
        if proctrack == "cgroup":
            ends.callback(_remove_cgroups)
        home = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="ft-slurm-")))
        yield Slurm(home, ends.enter_context(made(count + 1)), proctrack)


def _remove_cgroups() -> None:
    """Remove the cgroups that killed slurmds have left."""
    for top in _FREEZER.glob("slurm_machine*"):
        for folder, _, _ in os.walk(top, topdown=False):
            os.rmdir(folder)


def _where(program: str) -> str:
    found = shutil.which(program, path=_PATH)
    assert found is not None
    return found
