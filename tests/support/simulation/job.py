"""One job on simulated nodes, and its training."""

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
from tests.support.simulation.world import World

_PATIENCE = 90.0  # seconds in which a job whose network is well again ends, beside the steps that it has to make
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
    """Nodes, standbys, and the head."""

    def __init__(self, story: Story, home: Path, *, ranks_each: int = 1) -> None:
        """home: a directory for what is written; it may be that of another job that is over."""
        self.story, self.world, self.ranks_each = story, World(story.seed), ranks_each
        self.steps, self.nodes, self.home = story.steps, story.nodes, home
        self.storage: dict[int, str] = {}
        """step -> its history, of what was committed"""
        self.spec = _spec_of(home, story.nodes, story.least, ranks_each)
        shutil.rmtree(self.spec.run_dir, ignore_errors=True)
        self.spec.checkpoint_dir.mkdir(parents=True)
        self.whole = replace(self.spec, launch=replace(self.spec.launch, nproc=story.nodes * ranks_each))
        self.heads: list[Head] = []
        self.laws, self.claims = Laws(self), Storage(self)
        self.over = False
        self.code: int | None = None
        """of the job, once it is over"""
        self.fetched: set[int] = set()
        """steps that were fetched from the memory of other nodes"""
        self.fired: set[str] = set()
        """kinds of faults that have befallen something"""
        rates = [self.world.random.uniform(*story.clocks) for _ in range(story.nodes + story.standbys)]
        self.machines = [Machine(self, f"m{number}", rate) for number, rate in enumerate(rates)]
        for machine in self.machines:
            self.world.after(self.world.random.uniform(0.0, 1.0), machine.start)
        self.world.after(story.step, self._train)
        for fault in story.faults:
            self.world.after(fault.at, befall, self, fault)

    # --- the head ---------------------------------------------------------------------------------------------

    @property
    def head(self) -> Head | None:
        """The newest head, if it lives."""
        return next((one for one in reversed(self.heads) if one.lives), None)

    def listener(self, place: tuple[str, int]) -> Head | None:
        """Who listens at a port of a machine."""
        return next((one for one in self.heads if one.lives and (one.machine.name, one.port) == place), None)

    def start_head(self, machine: Machine, sign: Sign, *, may_be_beside: bool) -> None:
        """Start a head that listens there, and has claimed its term.

        Args:
            may_be_beside: the head before is on another machine, and may live on for a while.
        """
        head = Head(self, f"head{len(self.heads) + 1}", machine, sign, may_be_beside=may_be_beside)
        self.heads.append(head)
        self.claims.watch(head)

    def kill_heads(self, machine: Machine, port: int = 0) -> None:
        """SIGKILL to those on a machine: their connections end. port: of one of them; 0: of all."""
        for head in self.heads:
            if head.lives and head.machine is machine and port in (0, head.port):
                self.world.tell(f"the head of term {head.term} is killed")
                head.die()

    def way(self, machine: Machine) -> Link:
        """A node's link to the others."""
        return Link(self.world, self.story.delay)

    def connected(self, one: Machine, other: Machine) -> bool:
        """Whether messages get through between two machines."""
        return one is other or all((one.way.up, one.way.down, other.way.up, other.way.down))

    def machine(self, name: str) -> Machine:
        """By its name."""
        return self.machines[int(name[1:])]

    # --- training ---------------------------------------------------------------------------------------------

    def on_spawn(self, machine: Machine) -> None:
        """A node starts its ranks."""
        ranks = machine.ranks
        self.world.tell(f"{machine.name} starts place {ranks.place} of {machine.memory.lineage} at step {ranks.step}")

    def broken(self, why: str) -> None:
        """Something does not hold."""
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
        """A collective: all places, over links that carry."""
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
        """Ask the head for other nodes."""
        if self.head is not None and not self.over:
            with contextlib.suppress(CannotRegroup):
                self.world.tell(f"asked for other nodes: {ask(self.head.cluster.regrouping)}")

    def signal(self, machine: Machine) -> None:
        """SIGTERM to an agent whose leaving does not stop the job."""
        up = [one for one in self.machines if one.agent_awake and one.link.alone_since is None]
        if machine in up and len(up) > self.spec.nodes.least + 1:
            self.world.tell(f"SIGTERM to {machine.name}")
            machine.agent.on_signals(bytes([signal.SIGTERM]))

    # --- the end ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """To the end, which must come in time, with the same code for all."""
        try:
            until = self.story.healed + 1.5 * self.steps * self.story.step + _PATIENCE
            self.world.run(until, lambda: self.over)
            if self.code is None:
                self.broken(f"the job has not ended {until - self.story.healed:g} s after the last fault")
            else:
                self.world.run(self.world.now + _PATIENCE, lambda: not any(one.lives for one in self.machines))
                self.laws.left(self.code)
        finally:
            for head in self.heads:
                head.close()


def simulate(story: Story) -> Job:
    """A job to its end. Raises Broken, whose message tells the story."""
    job = Job(story, home())
    job.run()
    return job
