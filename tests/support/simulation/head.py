"""The head: the real supervisor and cluster, stepped by the world."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftlaunch.checkpoints.resume import Inherited
from ftlaunch.cluster.around import Around
from ftlaunch.cluster.cluster import Cluster
from ftlaunch.cluster.cluster_autopsy import ClusterCollectors
from ftlaunch.cluster.membership import plan, shared_dirs
from ftlaunch.cluster.membership.fingerprint import job_of
from ftlaunch.cluster.membership.isolated_machines import IsolatedMachines
from ftlaunch.cluster.membership.plan import Plan
from ftlaunch.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch.cluster.mirrors.cluster_ranks import ClusterRanks
from ftlaunch.engine.context import Context, Edges
from ftlaunch.engine.main import exit_code
from ftlaunch.engine.supervisor import Supervisor
from ftlaunch.policy.states import Event
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.incidents import IncidentJudged
from ftlaunch.spec import rule_parser
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch_contract.checkpoint import layout
from tests.support.simulation.machine import FACTS
from tests.support.simulation.network import End
from tests.support.simulation.storage import STALE
from tests.support.simulation.world import MachineClock, StepLoop

if TYPE_CHECKING:
    from tests.support.simulation.job import Job
    from tests.support.simulation.machine import Machine


_NORMAL = {"health": {"status": "normal"}}


class _Saver:
    """It has saved a moment after it was asked."""

    def __init__(self, head: Head) -> None:
        self._head = head
        head.savers += 1
        self.fd, self.pid = -100 - head.savers, 5000
        self.pending: dict[str, Any] | None = None
        self.closed = False
        self._said: list[dict[str, Any]] = []

    def ask(self, request: dict[str, Any]) -> None:
        """Take a request."""
        self.pending = request
        self._head.job.world.after(0.2, lambda: self._answer(request))

    def _answer(self, request: dict[str, Any]) -> None:
        if not self._head.lives:
            return
        if self._head.sleeps():
            self._head.job.world.after(0.1, lambda: self._answer(request))
            return
        told = {"did": request["do"], "step": request.get("step", -1), "why": request.get("why")}
        if request["do"] == "find":
            told |= {"step": max(self._head.job.storage, default=-1), "rejected": []}
        elif error := self._commit(request["step"]):
            told["error"] = error
        self._said.append({**told, "path": "x", "bytes": 1, "seconds": 0.1, "deleted": [], "notes": [], **_NORMAL})
        self.pending = None
        if self.fd in self._head.loop.handlers:
            self._head.loop.handlers[self.fd]()

    def _commit(self, step: int) -> str:
        """What the nodes hold of a step becomes a checkpoint; an error where one of them is lost."""
        job, head = self._head.job, self._head
        if not job.claims.is_newest(head):
            return "another head has taken over the job"
        histories = []
        for place in range(len(head.pages) // job.ranks_each):
            holder = head.holder(place)
            history = None if holder is None else dict(holder.memory.slots).get(step)
            if history is None:
                return f"node {place}, which held a part of it, is lost"
            histories.append(history)
        if len(set(histories)) > 1:
            job.broken(f"a torn checkpoint of step {step}: {histories}")
        job.storage[step] = histories[0]
        layout.iteration_dir(head.supervisor.saving.spec.checkpoint_dir, step).mkdir(parents=True, exist_ok=True)
        return ""

    def hurry(self) -> None:
        """It cannot go faster."""

    def answers(self) -> list[dict[str, Any]]:
        """What it has said."""
        said, self._said = self._said, []
        return said

    def work(self) -> object:
        """It works."""
        return self._head.job.world.now

    def look(self, now: float) -> None:
        """It is never stopped."""

    def close(self, timeout: float) -> int:
        """It is over."""
        self.closed = True
        return 0


class _Alive:
    """A probe that never learns that an agent has ended: the fence itself is tried."""

    def __init__(self, address: str, port: int) -> None:
        """Of no account."""

    def is_dead(self) -> bool:
        """Not known."""
        return False

    def close(self) -> None:
        """Nothing is open."""


class Head:
    """One life of the head."""

    def __init__(self, job: Job, memory: Path, machine: Machine, port: int, term: int) -> None:
        self.job, self.lives, self.savers = job, True, 0
        self.machine, self.port, self.term = machine, port, term
        world, spec = job.world, job.spec
        self.clock = MachineClock(world, world.random.uniform(0.97, 1.03))
        self.shown, self.held_until, self._cut_off = self.clock(), 0.0, False
        self.loop = loop = StepLoop(self.clock)
        self.pages = pages = ClusterPages(memory, job.whole.launch.nproc)
        self._plan, self._ends = plan.read(spec.run_dir), []  # type: ignore[var-annotated]
        self._machines = machines = IsolatedMachines(spec.nodes.isolate_after, spec.run_dir, self._say)
        around = Around(
            pages, spec.nodes.least, spec.nodes.most, spec.nodes.last_call, job.ranks_each, "sim", spec.nodes.timeout,
            spec.nodes.wait, self.clock, self._say, lambda why: loop.post(Event.STOP), lambda: None,
            lambda: loop.post(Event.PAUSE), _Alive, self._plan, memory.name, self._begun, FACTS,
            machines, memory.name, machine.name, term, lambda: self.clock() - self.shown < STALE,
        )  # fmt: skip
        assert job_of(spec)
        shared_dirs.write((spec.run_dir, spec.checkpoint_dir), memory.name)
        self.cluster = cluster = Cluster(around)
        context = Context(
            job.whole, pages, self._tell, loop, self.clock, world.random.random, HelperProcesses(),  # type: ignore[arg-type]
            rule_parser.builtin(), ClusterCollectors(cluster), cluster.may_restart, cluster.regroups,
            cluster.regroup,
        )  # fmt: skip
        edges = Edges(
            make_group=lambda number, exited: ClusterRanks(job.whole, pages, cluster, self.clock, number, exited),
            start_saver=lambda: _Saver(self),  # type: ignore[arg-type, return-value]
            may_begin=lambda _: cluster.settled(),
            deaths=cluster.reports,
            tell_outcomes=lambda: None,
            processor_time=lambda: 0.0,
            inherited=Inherited(None, ()),
            reached=-1,
            adoptable=self._adoptable,
            adopt=lambda group: group.adopt(cluster.adopt),  # type: ignore[attr-defined]
        )
        self.supervisor = Supervisor(context, edges)
        self._done = False
        self._tick()

    def _adoptable(self) -> int | None:
        attempt = self.cluster.adoptable()
        if attempt is not None and self._plan is not None:
            self.supervisor.incidents.budget = self._plan.budget
        return attempt

    def _begun(self, run: str, attempt: int) -> None:
        now = self.pages.every, self.supervisor.incidents.budget, self.cluster.roster.wanted
        plan.write(self.job.spec.run_dir, Plan(run, attempt, *now))

    def _say(self, sentence: str) -> None:
        self.job.world.tell(f"head: {sentence}")

    def _tell(self, event: JobEvent) -> None:
        if isinstance(event, IncidentJudged):
            self._machines.blame(event.cause.rank // self.job.ranks_each, event.cause.kind)
        if sentence := event.sentence():
            self._say(sentence)

    def holder(self, place: int) -> Machine | None:
        """The machine of a place, where it can be asked."""
        node = self.cluster._at(place)
        found = [one for one in self.job.machines if node is not None and one.name == node.host and one.awake]
        return found[0] if found else None

    def accept(self, end: End) -> None:
        """A connection has come; only while the head lives does it hear."""
        self._ends.append(end)
        end.sleeps = self.sleeps
        self.cluster.arrivals.accepted(end)  # type: ignore[arg-type]

    def die(self) -> None:
        """SIGKILL."""
        self.lives = False
        for end in self._ends:
            end.on_message, end.on_end = lambda message: None, lambda why: None
            end.close()
        self.close()

    def close(self) -> None:
        """Give the pages back."""
        self.pages.close()

    def sleeps(self) -> bool:
        """Its machine is frozen."""
        return self.machine.frozen

    def _give_way(self) -> None:
        cut_off = self.cluster.leadership.is_cut_off()
        if cut_off and not self._cut_off:
            self.held_until = self.clock() + 3.0
        self._cut_off = cut_off

    def _tick(self) -> None:
        if not self.lives:
            return
        if self.sleeps():
            self.job.world.after(0.05, self._tick)
            return
        supervisor = self.supervisor
        self.loop.step(supervisor.take)  # type: ignore[arg-type]
        if not supervisor.over:
            self.cluster.look()
            supervisor.look()
            self._give_way()
        elif not self._done:
            self._done = True
            if not self.job.claims.is_newest(self):
                self.job.broken("a head that was replaced has ended the job")
            self.job.claims.end(exit_code(supervisor.state, supervisor.saving.committed))
            self.cluster.end(exit_code(supervisor.state, supervisor.saving.committed), keep=False)
            plan.forget(self.job.spec.run_dir)
            self.job.world.tell(f"head: {supervisor.state.value}")
            self.job.over = True
        self.job.world.after(self.job.world.random.uniform(0.005, 0.1), self._tick)
