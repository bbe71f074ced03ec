"""Machines made of namespaces, and jobs on them: scripts/machines with the waits and marks of tests."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ftlaunch_contract.protocol import memory_root
from tests.support.harness import ATTACHED, TINY, FtJob
from tests.support.leftovers import mark
from tests.support.undisturbed import tiny_job
from tests.support.waiting import DEADLINE, wait_for

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

from machines.job import NodesJob
from machines.namespaces import CannotIsolate, Machine, Machines

RANKS = 2  # on each machine


@cache
def why_not() -> str:
    """Return why machines cannot be made here; empty if they can."""
    try:
        with Machines(1):
            return ""
    except CannotIsolate as error:
        return str(error)


@contextlib.contextmanager
def made(count: int) -> Iterator[Machines]:
    """Yield `count` machines; skips the test if they cannot be made."""
    if why := why_not():
        pytest.skip(why)
    with Machines(count) as machines:
        yield machines


def bind(machine: Machine, source: Path, target: str) -> None:
    """Have a machine find the file `source` at the path of another file, which the host has, too."""
    subprocess.run([*machine.enter("-m"), "mount", "--bind", str(source), target], check=True)


def name_hosts(machines: Machines, names: Mapping[str, Machine], file: Path) -> None:
    """Have all machines find machines by names. file: where their /etc/hosts is written."""
    lines = [f"{machine.address} {name}\n" for name, machine in names.items()]
    file.write_text("".join(["127.0.0.1 localhost\n", *lines]))
    for machine in machines.all:
        bind(machine, file, "/etc/hosts")


def empty(machine: Machine, *folders: str) -> None:
    """Remove all that lies in folders that are a machine's own, as on a new machine."""
    for folder in folders:
        for path in machine.path(folder).iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


class Cluster(NodesJob):
    """The tiny job on several machines; machines beyond `nodes` stand by."""

    def __init__(self, machines: Machines, home: Path, nodes: int, options: Sequence[str], *args: str) -> None:
        """Prepare the job.

        Args:
            machines: the machines.
            home: a directory for files.
            nodes: the number of nodes of the job.
            options: options of ftlaunch.
            args: arguments of tiny.py.
        """
        self.out = home / "out"
        self._nodes = nodes
        self.made = machines
        name = f"nodes-{mark()}-{uuid.uuid4().hex[:4]}"
        tiny = [str(TINY), "--out", str(self.out), *args]
        command = ["--grace", "3s", "--memory-interval", "1", "--preload", ATTACHED, *options, *tiny]
        super().__init__(
            machines=machines.all,
            home=home,
            name=name,
            nodes=nodes,
            command=command,
            ranks=RANKS,
        )

    def start_all(self, env: dict[str, str] | None = None) -> None:
        """Start the agents of the job's nodes, and, once their ranks run, the agents that stand by."""
        for number in range(self._nodes):
            self.start(number, "--node-rank", str(number), env=env)
        for number in range(self._nodes, len(self.machines)):
            self.wait_event("attempt_started")
            self.start(number, env=env)

    def transcript(self) -> str:
        """Return all output and the journal, for the message of a failing test."""
        output = "".join(f"--- machine {number}:\n{self.said(number)}" for number in self.agents)
        journal = self.run_dir / "events.jsonl"
        return output + (journal.read_text() if journal.exists() else "")

    def wait_event(self, name: str, count: int = 1, seconds: float = DEADLINE) -> dict[str, Any]:
        """Wait for the `count`-th event of a name; return the event."""
        with self._explained():
            return wait_for(lambda: self.events(name)[count - 1 : count], f"{name} no. {count}", seconds)[0]

    def wait_step(self, step: int) -> dict[int, int]:
        """Wait until all ranks have completed `step` steps; return each rank's pid on its machine."""
        with self._explained():
            return wait_for(lambda: self.ranks_at(step), f"step {step}")

    def wait(self, *numbers: int, seconds: float = DEADLINE) -> list[int | None]:
        """Wait for the agents of some machines, or of all; return their exit codes."""
        chosen = [self.agents[number] for number in numbers or self.agents]
        with self._explained():
            wait_for(lambda: all(agent.poll() is not None for agent in chosen), "the agents' ends", seconds)
        return [agent.poll() for agent in chosen]

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.transcript()}") from None

    def held(self, machine: Machine) -> list[str]:
        """Return the names of this job's directories in a machine's memory."""
        root = machine.path(memory_root(0))
        return [path.name for path in root.iterdir() if self.name in path.name] if root.exists() else []

    def result(self) -> tuple[list[dict[int, str]], list[str]]:
        """Return the losses by rank and step, and the digests of the final states, as `FtJob` reads them."""
        return result_of(self.out, len(range(self._nodes)) * RANKS)


def undisturbed(factory: pytest.TempPathFactory, *, nodes: int, steps: int) -> Any:
    """Return the result of the same ranks on one machine, which every job on several machines must equal."""
    ranks = nodes * RANKS
    return result_of(tiny_job(factory, ranks=ranks, steps=steps).out, ranks)


def result_of(out: Path, ranks: int) -> tuple[list[dict[int, str]], list[str]]:
    """Return what a job of tests/jobs/tiny.py has left; check that repeated steps had the same loss."""
    reader = FtJob(out.parent)
    reader.out = out
    return [reader.losses(rank) for rank in range(ranks)], reader.final()
