"""One simulated job: its machines, its heads, its storage and its training, in one thread.

Tests call `simulate`, which runs a story to its end and raises `Broken` if a law does not hold.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ftlaunch.nodes.channel.claims import Sign
from ftlaunch.nodes.cluster.regrouping import CannotRegroup, Regrouping
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.resolve import resolve
from ftlaunch_contract.protocol import EXIT_SAVED
from tests.support.simulation.faults import befall
from tests.support.simulation.head import Head
from tests.support.simulation.homes import home
from tests.support.simulation.laws import Laws
from tests.support.simulation.machine import Machine
from tests.support.simulation.network import Link
from tests.support.simulation.storage import Storage
from tests.support.simulation.story import Story
from tests.support.simulation.votes import VotedStorage
from tests.support.simulation.world import World

_PATIENCE = 90.0  # seconds that a job may take beyond its steps once the last fault is over
_NODE_WAIT = 60.0  # seconds


@functools.cache
def _spec_of(home: Path, nodes: int, least: int, ranks_each: int) -> JobSpec:
    flags = {
        "nnodes": f"{least or nodes}:{nodes}",
        "nproc_per_node": str(ranks_each), "rdzv_endpoint": "h:1", "job_id": "sim",
        "run_dir": str(home / "run"), "storage_interval": "off", "memory_interval": "1", "max_restarts": "1000",
        "hang_timeout": "1h", "grace": "1s", "backoff_first": "0.1s", "backoff_max": "0.2s",
        "node_wait": f"{_NODE_WAIT:g}s", "max_same_error": "off", "rdzv_conf": "last_call_timeout=3",
    }  # fmt: skip
    (home / "train.py").touch()
    return resolve(str(home / "train.py"), [], flags, {})


class Job:
    """The machines of a job, with standbys, and the job's heads."""

    def __init__(self, story: Story, home: Path, *, ranks_each: int = 1) -> None:
        """Build the machines, and plan their starts and the story's faults.

        Args:
            story: the job and its faults.
            home: a directory for files; it may be the directory of another job that is over.
            ranks_each: the number of ranks of each node.
        """
        self.story = story
        self.world = World(story.seed)
        self.ranks_each = ranks_each
        self.steps = story.steps
        self.nodes = story.nodes
        self.home = home
        self.storage: dict[int, str] = {}
        """step -> history of each committed checkpoint"""
        self.spec = _spec_of(home, story.nodes, story.least, ranks_each)
        shutil.rmtree(self.spec.run_dir, ignore_errors=True)
        self.spec.checkpoint_dir.mkdir(parents=True)
        self.whole = replace(self.spec, launch=replace(self.spec.launch, nproc=story.nodes * ranks_each))
        self.heads: list[Head] = []
        self.laws = Laws(self)
        self.claims = VotedStorage(self) if story.votes else Storage(self)
        self.over = False
        self.code: int | None = None
        """the exit code of the job once the job is over"""
        self.fetched: set[int] = set()
        """steps that were fetched from the memory of other nodes"""
        self.fired: set[str] = set()
        """kinds of faults that had something to act on"""
        slowest, fastest = story.clocks
        rates = [self.world.random.uniform(slowest, fastest) for _ in range(story.nodes + story.standbys)]
        self.machines = [Machine(self, f"m{number}", rate) for number, rate in enumerate(rates)]
        for machine in self.machines:
            self.world.after(self.world.random.uniform(0.0, 1.0), machine.start)
        self.world.after(story.step, self._train)
        for fault in story.faults:
            self.world.after(fault.at, befall, self, fault)

    # --- the head ---------------------------------------------------------------------------------------------

    @property
    def head(self) -> Head | None:
        """The newest head that lives, or None."""
        return next((head for head in reversed(self.heads) if head.lives), None)

    def listener(self, place: tuple[str, int]) -> Head | None:
        """Return the head that listens at a port of a machine, or None."""
        return next((head for head in self.heads if head.lives and (head.machine.name, head.port) == place), None)

    def start_head(self, machine: Machine, sign: Sign, *, may_be_beside: bool) -> None:
        """Start a head that has claimed its term and listens on a machine.

        Args:
            machine: the machine of the head.
            sign: the sign of life with which the term was claimed.
            may_be_beside: whether the head before is on another machine and may live on for a while.
        """
        head = Head(self, f"head{len(self.heads) + 1}", machine, sign, may_be_beside=may_be_beside)
        self.heads.append(head)
        self.claims.watch(head)

    def kill_heads(self, machine: Machine, port: int = 0) -> None:
        """Kill heads on a machine, which ends their connections.

        Args:
            machine: the machine of the heads.
            port: the port of the head to kill; 0 for all heads of the machine.
        """
        for head in self.heads:
            if head.lives and head.machine is machine and port in (0, head.port):
                self.world.record(f"the head of term {head.term} is killed")
                head.die()

    def way(self, machine: Machine) -> Link:
        """Return a new link between a node and the others."""
        return Link(self.world, self.story.delay)

    def connected(self, machine: Machine, other: Machine) -> bool:
        """Return whether messages get through between two machines."""
        return machine is other or all((machine.way.up, machine.way.down, other.way.up, other.way.down))

    def machine(self, name: str) -> Machine:
        """Return the machine of a name."""
        return self.machines[int(name[1:])]

    # --- training ---------------------------------------------------------------------------------------------

    def on_spawn(self, machine: Machine) -> None:
        """Note that a node starts its ranks."""
        ranks = machine.ranks
        self.world.record(f"{machine.name} starts place {ranks.place} of {machine.memory.lineage} at step {ranks.step}")

    def broken(self, why: str) -> None:
        """Raise Broken with a reason."""
        self.laws.broken(why)

    def _train(self) -> None:
        if self.over:
            return
        at_work = [machine for machine in self.machines if machine.ranks.trains]
        self.laws.places(at_work)
        for lineage in sorted({machine.memory.lineage for machine in at_work}):
            self._step([machine for machine in at_work if machine.memory.lineage == lineage])
        self.world.after(self.story.step, self._train)

    def _step(self, together: list[Machine]) -> None:
        """Have the ranks of one attempt make a step together, if all places are there and all links carry messages."""
        nodes = together[0].ranks.nodes
        if {machine.ranks.place for machine in together} != set(range(nodes)) or len(together) != nodes:
            return
        if nodes > 1 and not all(machine.way.up and machine.way.down for machine in together):
            return
        self.laws.stepped(together)
        for machine in together:
            if machine.ranks.step >= min(self.steps, machine.ranks.stop_at):
                machine.ranks.die(0 if machine.ranks.step >= self.steps else EXIT_SAVED)
            else:
                machine.ranks.train()

    # --- what is asked of it ----------------------------------------------------------------------------------

    def regroup(self, ask: Callable[[Regrouping], str]) -> None:
        """Ask the head for other nodes, as `ftctl` does."""
        if self.head is not None and not self.over:
            with contextlib.suppress(CannotRegroup):
                self.world.record(f"asked for other nodes: {ask(self.head.cluster.regrouping)}")

    def signal(self, machine: Machine) -> None:
        """Send SIGTERM to an agent, if the job can go on without its node."""
        up = [node for node in self.machines if node.agent_awake and node.link.alone_since is None]
        if machine in up and len(up) > self.spec.nodes.least + 1:
            self.world.record(f"SIGTERM to {machine.name}")
            machine.agent.on_signals(bytes([signal.SIGTERM]))

    # --- the end ----------------------------------------------------------------------------------------------

    def has_ended_alone(self) -> bool:
        """Return whether all agents have ended, one of them with 75 as no majority is left that could elect a head."""
        codes = {machine.code for machine in self.machines}
        return self.story.votes and EXIT_SAVED in codes and not any(machine.lives for machine in self.machines)

    def run(self) -> None:
        """Run to the end, which must come in time and with the same exit code on all nodes. Raises Broken."""
        try:
            until = self.story.healed + 1.5 * self.steps * self.story.step + _PATIENCE
            self.world.run(until, lambda: self.over or self.has_ended_alone())
            if self.code is None and self.has_ended_alone():
                return
            if self.code is None:
                self.broken(f"the job has not ended {until - self.story.healed:g} s after the last fault")
            else:
                self.world.run(self.world.now + _PATIENCE, lambda: not any(machine.lives for machine in self.machines))
                self.laws.left(self.code)
        finally:
            for head in self.heads:
                head.close()


def simulate(story: Story) -> Job:
    """Run a job to its end. Raises Broken, with the whole story in the message."""
    job = Job(story, home())
    job.run()
    return job
