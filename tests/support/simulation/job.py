"""One job on simulated nodes, and what must hold of it at every moment."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ftlaunch.cluster.regrouping import CannotRegroup, Regrouping
from ftlaunch.spec.resolve import resolve
from ftlaunch_contract.protocol import EXIT_SAVED
from tests.support.simulation.head import Head
from tests.support.simulation.machine import Machine
from tests.support.simulation.network import Link
from tests.support.simulation.storage import Storage
from tests.support.simulation.world import World

_AFTER_THAW = 0.5  # seconds in which ranks that were stopped may not know yet that they are over


class Broken(AssertionError):
    """Something does not hold that must."""


class Job:
    """Nodes, standbys, and the head."""

    def __init__(
        self, world: World, home: Path, *, nodes: int, standbys: int, steps: int, step: float, least: int = 0
    ) -> None:  # fmt: skip
        """home: an empty directory. step: seconds that a step takes. least: nodes at least; 0: as many as at most."""
        self.world, self.steps, self.ranks_each = world, steps, 2
        self.storage: dict[int, str] = {}
        """step -> its history, of what was committed"""
        self._step_seconds = step
        (home / "train.py").touch()
        flags = {
            "nnodes": f"{least or nodes}:{nodes}",
            "nproc_per_node": str(self.ranks_each), "rdzv_endpoint": "h:1", "job_id": "sim",
            "run_dir": str(home / "run"), "storage_interval": "off", "memory_interval": "1", "max_restarts": "1000",
            "hang_timeout": "1h", "grace": "1s", "backoff_first": "0.1s", "backoff_max": "0.2s", "node_wait": "300s",
            "max_same_error": "off",
        }  # fmt: skip
        self.spec = resolve(str(home / "train.py"), [], flags, {})
        self.spec.checkpoint_dir.mkdir(parents=True)
        self.whole = replace(self.spec, launch=replace(self.spec.launch, nproc=nodes * self.ranks_each))
        self.nodes, self._home = nodes, home
        self.heads: list[Head] = []
        self.claims = Storage(self)
        self.over = False
        self.fired: list[str] = []
        rates = [world.random.uniform(0.97, 1.03) for _ in range(nodes + standbys)]
        self.machines = [Machine(self, f"m{number}", rate) for number, rate in enumerate(rates)]
        for machine in self.machines:
            world.after(world.random.uniform(0.0, 3.0), machine.start)
        world.after(self._step_seconds, self._train)

    # --- the head ---------------------------------------------------------------------------------------------

    @property
    def head(self) -> Head | None:
        """The newest head, if it lives."""
        return next((one for one in reversed(self.heads) if one.lives), None)

    def listener(self, place: tuple[str, int]) -> Head | None:
        """Who listens at a port of a machine."""
        return next((one for one in self.heads if one.lives and (one.machine.name, one.port) == place), None)

    def start_head(self, machine: Machine, port: int) -> None:
        """It listens there, and claims the next term."""
        memory = self._home / f"head{len(self.heads) + 1}"
        memory.mkdir()
        self.heads.append(Head(self, memory, machine, port, self.claims.claim(machine, port)))
        self.claims.watch(self.heads[-1])

    def kill_heads(self, machine: Machine, port: int = 0) -> None:
        """SIGKILL to those on a machine: their connections end. port: of one of them; 0: of all."""
        for head in self.heads:
            if head.lives and head.machine is machine and port in (0, head.port):
                self.world.tell(f"the head of term {head.term} is killed")
                head.die()

    def _kill_head(self) -> None:
        if self.head is not None:
            self.kill_heads(self.head.machine)

    def way(self, machine: Machine) -> Link:
        """A node's link to the others."""
        return Link(self.world)

    def connected(self, one: Machine, other: Machine) -> bool:
        """Whether messages get through between two machines."""
        return one is other or all((one.way.up, one.way.down, other.way.up, other.way.down))

    def machine(self, name: str) -> Machine:
        """By its name."""
        return next(one for one in self.machines if one.name == name)

    # --- training ---------------------------------------------------------------------------------------------

    def on_spawn(self, machine: Machine) -> None:
        """A node starts its ranks."""
        ranks = machine.ranks
        self.world.tell(f"{machine.name} starts place {ranks.place} of {machine.memory.lineage} at step {ranks.step}")

    def broken(self, why: str) -> None:
        """Something does not hold."""
        raise Broken(why)

    def _train(self) -> None:
        if self.over:
            return
        at_work = [machine for machine in self.machines if machine.ranks.trains]
        self._check_places(at_work)
        for lineage in sorted({machine.memory.lineage for machine in at_work}):
            self._step([machine for machine in at_work if machine.memory.lineage == lineage])
        self.world.after(self._step_seconds, self._train)

    def _check_places(self, at_work: list[Machine]) -> None:
        """At most one node's ranks are at work in a place."""
        seen: dict[int, Machine] = {}
        for machine in at_work:
            if machine.thawed_at > self.world.now - _AFTER_THAW:
                continue
            other = seen.setdefault(machine.ranks.place, machine)
            if other is not machine:
                self.broken(f"{other.name} and {machine.name} both work in place {machine.ranks.place}")

    def _step(self, together: list[Machine]) -> None:
        """A collective: all places, over links that carry."""
        nodes = together[0].ranks.nodes
        if {machine.ranks.place for machine in together} != set(range(nodes)) or len(together) != nodes:
            return
        if not all(machine.way.up and machine.way.down for machine in together):
            return
        if len({(machine.ranks.history, machine.ranks.step) for machine in together}) > 1:
            told = [(machine.name, machine.ranks.step, machine.ranks.history) for machine in together]
            self.broken(f"states of different histories train together: {told}")
        for machine in together:
            if machine.ranks.step >= min(self.steps, machine.ranks.stop_at):
                machine.ranks.die(0 if machine.ranks.step >= self.steps else EXIT_SAVED)
            else:
                machine.ranks.train()

    # --- a story ----------------------------------------------------------------------------------------------

    def plan_faults(self, count: int, until: float) -> None:
        """Faults at random moments, and none later than `until`."""
        random = self.world.random
        for _ in range(count):
            machine, seconds = random.choice(self.machines), random.choice((0.3, 1.0, 2.2, 3.5, 8.0))
            up, down = random.choice(((True, True), (True, False), (False, True)))
            kind, fault = random.choice((
                ("rank", lambda m=machine: m.ranks.die(1) if m.ranks.trains else None),
                ("crash", lambda m=machine, s=seconds: m.crash(s)),
                ("freeze", lambda m=machine, s=seconds: m.freeze(s)),
                ("cut", lambda m=machine, s=seconds, u=up, d=down: m.cut(up=u, down=d, seconds=s)),
                ("head", self._kill_head),
                ("machine", lambda m=machine, s=seconds: m.lose(s)),
            ))  # fmt: skip
            self.fired.append(kind)
            self.world.after(random.uniform(4.0, until), fault)

    def plan_requests(self, count: int, until: float) -> None:
        """Other nodes are asked for at random moments, by people and by signals."""
        random = self.world.random
        for _ in range(count):
            kind = random.choice(("grow", "drain", "signal"))
            request = {"grow": self._grow, "drain": self._drain, "signal": self._signal}[kind]
            self.world.after(random.uniform(4.0, until), request)

    def _ask(self, ask: Callable[[Regrouping], str]) -> None:
        if self.head is not None and not self.over:
            with contextlib.suppress(CannotRegroup):
                self.world.tell(f"asked for other nodes: {ask(self.head.cluster.regrouping)}")

    def _grow(self) -> None:
        self._ask(lambda regrouping: regrouping.grow())

    def _drain(self) -> None:
        place = self.world.random.randrange(self.nodes)
        self._ask(lambda regrouping: regrouping.drain(str(place)))

    def _signal(self) -> None:
        """SIGTERM to an agent whose leaving does not stop the job."""
        machine = self.world.random.choice(self.machines)
        up = [one for one in self.machines if one.awake and one.link.alone_since is None]
        if machine in up and len(up) > self.spec.nodes.least + 1:
            self.world.tell(f"SIGTERM to {machine.name}")
            machine.agent.on_signals(bytes([signal.SIGTERM]))

    def run(self, until: float) -> None:
        """To the end, which must come in time, with the same code for all."""
        self.world.run(until, lambda: self.over)
        if not self.over:
            self.broken(f"the job has not ended after {until:g} s")
        self.world.run(self.world.now + 60.0, lambda: not any(machine.lives for machine in self.machines))
        codes = {machine.code for machine in self.machines if machine.code is not None}
        if codes - {0, EXIT_SAVED} or codes == {EXIT_SAVED}:  # one that was cut off at the end finds no head any more
            self.broken(f"agents have ended with {sorted(codes)}")

    def close(self) -> None:
        """Give pages back."""
        for head in self.heads:
            if head.lives:
                head.close()
