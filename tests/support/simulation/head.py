"""The head: the real supervisor and cluster, stepped by the world."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ftlaunch.checkpoints.resume import Inherited
from ftlaunch.common.bulkheads import Bulkheads, FailedCall
from ftlaunch.engine.context import Context, Edges
from ftlaunch.engine.main import exit_code
from ftlaunch.engine.supervisor import Supervisor
from ftlaunch.nodes.channel.claims import Sign
from ftlaunch.nodes.cluster.around import Around
from ftlaunch.nodes.cluster.cluster import Cluster
from ftlaunch.nodes.cluster.cluster_autopsy import ClusterCollectors
from ftlaunch.nodes.cluster.membership import plan, shared_dirs
from ftlaunch.nodes.cluster.membership.isolated_machines import IsolatedMachines
from ftlaunch.nodes.cluster.membership.plan import Plan
from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch.nodes.cluster.mirrors.cluster_ranks import ClusterRanks
from ftlaunch.policy.states import Event
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.incidents import IncidentJudged
from ftlaunch.spec.parsing import rule_parser
from ftlaunch.system.helper_process import HelperProcesses
from tests.support.fakes.files import AllFilesInPlace, FilesInPlace
from tests.support.simulation.machine import FACTS
from tests.support.simulation.network import End
from tests.support.simulation.saver import SimSaver
from tests.support.simulation.storage import STALE
from tests.support.simulation.world import StepLoop

if TYPE_CHECKING:
    from tests.support.simulation.job import Job
    from tests.support.simulation.machine import Machine


_RULES = rule_parser.builtin()


class _Alive:
    """A probe that never learns that an agent has ended: the fence itself is tried."""

    def __init__(self, address: str, port: int) -> None:
        """Of no account."""

    def is_dead(self) -> bool:
        """Not known."""
        return False

    def close(self) -> None:
        """Nothing is open."""


def _raise(failed: FailedCall) -> None:
    """No call fails here, unless the head is wrong."""
    raise failed.error


class Head:
    """One life of the head."""

    def __init__(self, job: Job, name: str, machine: Machine, sign: Sign, *, may_be_beside: bool) -> None:
        """name: of this life. sign: as it was shown when the term was claimed."""
        self.job, self.lives, self.savers, self._stalled, self._closed = job, True, 0, 0, False
        self.machine, self.sign, self.port, self.term = machine, sign, sign.port, sign.term
        world, spec = job.world, job.spec
        self.clock = machine.clock
        self.shown, self.held_until, self._cut_off = self.clock(), 0.0, False
        self.judged = False
        """it has judged a failure after which no attempt has begun"""
        self._next = 0.0  # when it gets its turn
        self.loop = loop = StepLoop(self.clock, self.wake)
        memory = job.home / f"{machine.name}.{sign.port}.{job.whole.launch.nproc}"
        memory.mkdir(exist_ok=True)
        self.pages = pages = ClusterPages(memory, job.whole.launch.nproc)
        for page in pages.pages:  # the directory is that of an earlier head, or of another story's
            page.format()
        self._plan, self._ends = plan.read(spec.run_dir), []  # type: ignore[var-annotated]
        self._machines = machines = IsolatedMachines(spec.nodes.isolate_after, spec.run_dir, FilesInPlace(), self._say)
        around = Around(
            pages, spec.nodes.least, spec.nodes.most, spec.nodes.last_call, job.ranks_each, "sim", spec.nodes.timeout,
            spec.nodes.wait, self.clock, self._say, lambda why: loop.post(Event.STOP), lambda: None,
            lambda: loop.post(Event.PAUSE), _Alive, self._plan, name, self._begun, FACTS,
            machines, name, machine.name, sign.term, self._leads, job.story.copies,
            may_be_beside=may_be_beside,
        )  # fmt: skip
        shared_dirs.write((spec.run_dir, spec.checkpoint_dir), name)
        self.cluster = cluster = Cluster(around)
        context = Context(
            spec=job.whole,
            pages=pages,
            tell=self._tell,
            loop=loop,  # type: ignore[arg-type]
            clock=self.clock,
            random=world.random.random,
            helpers=HelperProcesses(),
            rules=_RULES,
            collect=ClusterCollectors(cluster),
            bulkheads=Bulkheads(_raise),
            files=AllFilesInPlace(spec.run_dir, spec.log_dir, spec.checkpoint_dir),
            may_start=cluster.may_restart,
            regroups=cluster.regroups,
            regroup=cluster.regroup,
        )
        edges = Edges(
            make_group=lambda number, exited: ClusterRanks(
                job.whole, pages, cluster, self.clock, FilesInPlace(), number, exited
            ),
            start_saver=lambda: SimSaver(self),  # type: ignore[arg-type, return-value]
            may_begin=lambda _: cluster.settled(),
            deaths=cluster.reports,
            tell_outcomes=lambda: None,
            processor_time=self._processor_time,
            inherited=Inherited(None, ()),
            reached=-1,
            adoptable=cluster.older.adoptable,
            adopt=lambda group: group.adopt(cluster.adopt),  # type: ignore[attr-defined]
            peers=cluster.copies,
        )
        self.supervisor = Supervisor(context, edges)
        if self._plan is not None:
            self.supervisor.incidents.budget = self._plan.budget
        self._used, self._done, self._over_since = 0.0, False, 0.0
        self.wake()

    def _leads(self) -> bool:
        return self.shown + STALE > self.clock() >= self.held_until

    def _processor_time(self) -> float:
        """Each look takes so much that the next one comes a quarter of a second later: what a busy head does."""
        self._used += 0.002
        return self._used

    def _begun(self, run: str, attempt: int) -> None:
        now = self.pages.every, self.supervisor.incidents.budget, self.cluster.roster.wanted
        self.job.laws.begun(self, self.supervisor.incidents.budget)
        plan.write(self.job.spec.run_dir, Plan(run, attempt, *now))

    def _say(self, sentence: str) -> None:
        if "the clock of" not in sentence:  # all of them are minutes apart
            self.job.world.tell(f"head: {sentence}")

    def _tell(self, event: JobEvent) -> None:
        if isinstance(event, IncidentJudged):
            self._machines.blame(event.cause.rank // self.job.ranks_each, event.cause.kind)
            if event.verdict.restart:
                self.judged = True
        if sentence := event.sentence():
            self._say(sentence)

    def history_of(self, place: int, step: int) -> str | None:
        """Of the snapshot of a place that would be saved: its own, or the one that was made again elsewhere."""
        first = place * self.job.ranks_each
        ((home, _),) = self.cluster.copies.lost_snapshots.by_place({first: None}).items()
        holder = self.holder(home)
        if holder is None:
            return None
        kept = dict(holder.memory.slots) if home == place else dict([holder.memory.rescued.get(place, (-1, ""))])
        return kept.get(step)

    def holder(self, place: int) -> Machine | None:
        """The machine of a place, where it can be asked."""
        node = self.cluster.copies._places.at(place)
        found = [one for one in self.job.machines if node is not None and one.name == node.host and one.agent_awake]
        return found[0] if found else None

    def accept(self, end: End) -> None:
        """A connection has come; only while the head lives does it hear."""
        self._ends = [one for one in self._ends if one.open]
        self._ends.append(end)
        end.sleeps, end.wake = self.sleeps, self.wake
        self.cluster.arrivals.accepted(end)  # type: ignore[arg-type]

    def die(self) -> None:
        """SIGKILL."""
        self.lives = False
        for end in self._ends:
            end.on_message, end.on_end = lambda message: None, lambda why: None
            end.close()
        self.close()

    def close(self) -> None:
        """Give back what it holds; once is enough."""
        if not self._closed:
            self._closed = True
            self.pages.close()
            self.supervisor.incidents.kernel.close()
            os.close(self.cluster.reports.fd)

    def sleeps(self) -> bool:
        """It is stopped, or its machine is frozen."""
        return self._stalled > 0 or self.machine.frozen

    def stall(self, seconds: float) -> None:
        """SIGSTOP for a while."""
        self.job.world.tell(f"the head of term {self.term} is stopped for {seconds:g} s")
        self._stalled += 1
        self.job.world.after(seconds, self._go_on)

    def _go_on(self) -> None:
        self._stalled -= 1

    def _give_way(self) -> None:
        cut_off = self.cluster.leadership.is_cut_off()
        if cut_off and not self._cut_off:
            self.held_until = self.clock() + 3.0
        self._cut_off = cut_off

    # --- its loop ---------------------------------------------------------------------------------------------

    def wake(self, within: float = 0.005) -> None:
        """Something has happened: it gets its turn in a moment."""
        world = self.job.world
        when = world.now + world.random.random() * within
        if not self._next or when < self._next:
            self._next = when
            world.after(when - world.now, self._turn, when)

    def _turn(self, when: float) -> None:
        if not self.lives or when != self._next:
            return
        self._next, wait = 0.0, 0.05
        if not self.sleeps():
            self._step()
            due = self.loop.next_due(self.supervisor.next_look())
            wait = min(max(self.clock.until(due), 0.01), 0.15)
        if self.lives and not self._next:
            self._next = self.job.world.now + wait + self.job.world.random.random() * 0.03
            self.job.world.after(self._next - self.job.world.now, self._turn, self._next)

    def _step(self) -> None:
        supervisor = self.supervisor
        self.loop.step(supervisor.take)  # type: ignore[arg-type]
        if not supervisor.over:
            self.cluster.look()
            supervisor.look()
            self._give_way()
        elif not self._done:
            self._over_since = self._over_since or self.clock()
            if self._leads() and self.shown >= self._over_since:
                self._end()

    def _end(self) -> None:
        job, code = self.job, exit_code(self.supervisor)
        self._done, job.code = True, code
        job.laws.ended(code, self)
        self.cluster.end(code, keep=False)
        job.claims.end(self, code)
        plan.forget(job.spec.run_dir)
        job.world.tell(f"head: {self.supervisor.state.value}")
        job.over = True
