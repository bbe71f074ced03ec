"""Machines of namespaces that ssh reaches by their names, and a job that a recipe of the guide starts on them.

Each machine has a network, a /dev/shm, a /var/tmp and a working directory of its own, and an sshd. What they share is
what is installed, and the folder in which the scripts of the tests leave their results.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.harness import TINY
from tests.support.machines import RANKS, Machine, Machines, NodesJob, bind, empty, name_hosts, result_of
from tests.support.sshd import PATH, find, make_keys
from tests.support.waiting import DEADLINE, wait_for

_OWN = "/var/tmp"
NODES = 2


class SshMachines(NodesJob):
    """A job of two machines, started by one command on the first of them; a third one has the bucket."""

    def __init__(self, machines: Machines, home: Path) -> None:
        """Prepare machines and files. home: a directory for files, which is made."""
        super().__init__(machines.all[:NODES], home, "apart", NODES, ())
        self.nodes = machines.all[:NODES]
        self.out = home / "out"
        self.run_dir = Path(_OWN, "run")
        self._has_own_disks = True
        self._work = home / "work"
        self._work.mkdir()
        self.command: Any = None
        names = {f"node{number}": machine for number, machine in enumerate(self.nodes, 1)}
        name_hosts(machines, names, home / "hosts")
        make_keys(home)
        (home / "ssh_config").write_text(
            f"Host *\n  IdentityFile {home / 'user_key'}\n  IdentityAgent none\n  StrictHostKeyChecking no\n"
            f"  UserKnownHostsFile {home / 'known_hosts'}\n  LogLevel ERROR\n"
        )
        bind(self.nodes[0], home / "ssh_config", "/etc/ssh/ssh_config")
        for machine in self.nodes:
            machine.own(Path(_OWN))
            machine.own(self._work)
            self.install(machine)
            self.boot(machine)

    def install(self, machine: Machine) -> None:
        """Put the script into the working directory of a machine."""
        shutil.copy(TINY, machine.path(self._work / "train.py"))
        shutil.copy(TINY.parent / "quick.py", machine.path(self._work))

    def boot(self, machine: Machine) -> None:
        """Start the sshd of a machine. Those who log in find the tested ftlaunch, whatever else is installed."""
        environment = " ".join(f"{name}={os.environ[name]}" for name in ("PYTHONPATH",) if name in os.environ)
        config = self.home / "sshd_config"
        config.write_text(
            f"ListenAddress 0.0.0.0\nPort 22\nHostKey {self.home / 'host_key'}\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {self.home / 'authorized_keys'}\nStrictModes no\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
            f"{f'SetEnv {environment}' if environment else ''}\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd separates its privileges
        with (self.home / f"sshd_{machine.number}.log").open("ab") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            machine.start([find("sshd"), "-D", "-e", "-f", str(config)], self.home, os.environ, **streams)

    def renew(self, machine: Machine) -> None:
        """Give a machine empty disks and an empty memory; nothing but what is installed is there."""
        empty(machine, _OWN, "/dev/shm")

    def type(self, script: str, env: Mapping[str, str]) -> None:
        """Type the commands of a recipe on the first machine. env: what the user's shell has besides."""
        environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{PATH}", **env}
        with (self.home / "terminal").open("ab") as out:
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            self.command = self.nodes[0].start(["bash", "-c", script], self._work, environ, **streams)

    def end(self) -> int:
        """Wait for the end of the command; return its exit code."""
        return int(self._explained(self._is_over, "the end of the command"))

    def _is_over(self) -> str | None:
        code = self.command.poll()
        return None if code is None else str(code)

    def wait_event(self, name: str, count: int = 1) -> dict[str, Any]:
        """Wait for the `count`-th event of a name in the journal; return the event."""
        found: dict[str, Any] = self._explained(lambda: self.events(name)[count - 1 : count], f"{name} no. {count}")[0]
        return found

    def wait_step(self, step: int) -> dict[int, int]:
        """Wait until all ranks have completed `step` steps; return each rank's pid on its machine."""
        pids: dict[int, int] = self._explained(lambda: self.ranks_at(step), f"step {step}")
        return pids

    def _explained(self, ready: Any, what: str) -> Any:
        try:
            return wait_for(ready, what, DEADLINE)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.transcript}") from None

    @property
    def transcript(self) -> str:
        """What the command has shown, and the journal: the message of a failing test."""
        journals = [machine.path(self.run_dir / "events.jsonl") for machine in self.nodes]
        texts = [path.read_text() for path in journals if path.exists()]
        return "\n".join([(self.home / "terminal").read_text(errors="replace"), "--- journal", *texts[:1]])

    def result(self) -> Any:
        """Return the losses by rank and step, and the digests of the final states."""
        return result_of(self.out, NODES * RANKS)
