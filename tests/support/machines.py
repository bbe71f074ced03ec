"""Machines made of namespaces, and jobs on them: what scripts/machines has, with tests' waits and marks."""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ftlaunch_contract.protocol import memory_root
from tests.support.harness import ATTACHED, TINY, FtJob
from tests.support.leftovers import mark
from tests.support.waiting import DEADLINE, wait_for

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

from machines.job import NodesJob
from machines.namespaces import CannotIsolate, Machine, Machines

RANKS = 2  # on each machine


@cache
def why_not() -> str:
    """Why there can be no machines here; empty where there can."""
    try:
        with Machines(1):
            return ""
    except CannotIsolate as error:
        return str(error)


@contextlib.contextmanager
def made(count: int) -> Iterator[Machines]:
    """So many machines; skips the test where there can be none."""
    if why := why_not():
        pytest.skip(why)
    with Machines(count) as machines:
        yield machines


class Cluster(NodesJob):
    """The tiny job on several machines: those beyond `nodes` stand by."""

    def __init__(self, machines: Machines, home: Path, nodes: int, options: Sequence[str], *args: str) -> None:
        self.out, self._nodes, self.made = home / "out", nodes, machines
        name = f"nodes-{mark()}-{uuid.uuid4().hex[:4]}"
        tiny = [str(TINY), "--out", str(self.out), *args]
        command = ["--grace", "3s", "--memory-interval", "1", "--preload", ATTACHED, *options, *tiny]
        super().__init__(machines.all, home, name, nodes, command, RANKS)

    def start_all(self, env: dict[str, str] | None = None) -> None:
        """The wanted agents with places by their numbers; then, once their ranks run, those that stand by."""
        for number in range(self._nodes):
            self.start(number, "--node-rank", str(number), env=env)
        for number in range(self._nodes, len(self.machines)):
            self.wait_event("attempt_started")
            self.start(number, env=env)

    def told(self) -> str:
        """All that was said and noted, for a test that fails."""
        said = "".join(f"--- machine {number}:\n{self.said(number)}" for number in self.agents)
        journal = self.run_dir / "events.jsonl"
        return said + (journal.read_text() if journal.exists() else "")

    def wait_event(self, name: str, count: int = 1, seconds: float = DEADLINE) -> dict[str, Any]:
        """Wait for the `count`-th event of a name."""
        with self._explained():
            return wait_for(lambda: self.events(name)[count - 1 : count], f"{name} no. {count}", seconds)[0]

    def wait_step(self, step: int) -> dict[int, int]:
        """Wait until all ranks have made so many steps; rank -> pid on its machine."""
        with self._explained():
            return wait_for(lambda: self.ranks_at(step), f"step {step}")

    def wait(self, *numbers: int, seconds: float = DEADLINE) -> list[int | None]:
        """The exit codes of the agents of some machines, or of all."""
        chosen = [self.agents[number] for number in numbers or self.agents]
        with self._explained():
            wait_for(lambda: all(agent.poll() is not None for agent in chosen), "the agents' ends", seconds)
        return [agent.poll() for agent in chosen]

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from None

    def held(self, machine: Machine) -> list[str]:
        """What of this job lies in a machine's memory."""
        root = machine.path(memory_root(0))
        return [path.name for path in root.iterdir() if self.name in path.name] if root.exists() else []

    def result(self) -> tuple[list[dict[int, str]], list[str]]:
        """Losses by rank and step, and the digests of the final states; see FtJob."""
        return result_of(self.out, len(range(self._nodes)) * RANKS)


def undisturbed(home: Path, args: Sequence[str], ranks: int) -> Any:
    """What the same ranks make on one machine: what every job on several must end as."""
    job = FtJob(home)
    try:
        job.start(args=("--out", str(job.out), *args), ranks=ranks)
        assert job.wait() == 0, job.stderr
    finally:
        job.dispose()
    return result_of(job.out, ranks)


def result_of(out: Path, ranks: int) -> tuple[list[dict[int, str]], list[str]]:
    """What a job of tests/jobs/tiny.py has left: steps that were made twice must have had the same loss."""
    reader = FtJob(out.parent)
    reader.out = out
    return [reader.losses(rank) for rank in range(ranks)], reader.final()
