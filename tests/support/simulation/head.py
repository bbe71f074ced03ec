"""The head of a simulated job: the real supervisor and cluster, stepped by the simulated world in its one thread."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ftlaunch.checkpoints.resume import Inherited
from ftlaunch.common.bulkheads import Bulkheads, FailedCall
from ftlaunch.engine.context import Context, Edges
from ftlaunch.engine.main import exit_code
from ftlaunch.engine.supervisor import Supervisor
from ftlaunch.nodes.channel.claims import Sign
from ftlaunch.nodes.cluster.cluster import Cluster
from ftlaunch.nodes.cluster.cluster_autopsy import ClusterCollectors
from ftlaunch.nodes.cluster.cluster_context import ClusterContext
from ftlaunch.nodes.cluster.membership import plan, shared_dirs
from ftlaunch.nodes.cluster.membership.isolated_machines import IsolatedMachines
from ftlaunch.nodes.cluster.membership.plan import Plan
from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch.nodes.cluster.mirrors.cluster_ranks import ClusterRanks
from ftlaunch.nodes.cluster.unshared_nodes import UnsharedNodes
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
from tests.support.simulation.votes import AllUnshared
from tests.support.simulation.world import StepLoop

if TYPE_CHECKING:
    from tests.support.simulation.job import Job
    from tests.support.simulation.machine import Machine


_UNSEEN = 30.0  # seconds for which the end waits for proof that this head leads, as in `HeadJob`
_ALONE = 30.0  # seconds without a majority after which a head ends
_RULES = rule_parser.builtin()


class _Alive:
    """A probe that never learns that an agent has ended, so that the fence itself is tested."""

    def __init__(self, address: str, port: int) -> None:
        """Ignore the address of the agent."""

    def is_dead(self) -> bool:
        """Return False: the end of an agent stays unknown."""
        return False

    def close(self) -> None:
        """Do nothing: no connection is open."""


def _raise(failed: FailedCall) -> None:
    """Raise the error of a call that must not fail in a simulation."""
    raise failed.error


class Head:
    """One life of the head, from its claim of a term to its end."""

    def __init__(self, job: Job, name: str, machine: Machine, sign: Sign, *, may_be_beside: bool) -> None:
        """Start the head.

        Args:
            job: the simulated job.
            name: names this life of the head.
            machine: the machine on which the head runs.
            sign: the sign of life with which the term was claimed.
            may_be_beside: whether the head before may still live, on another machine.
        """
        self.job = job
        self.lives = True
        self.savers = 0
        self._stalled = 0
        self._closed = False
        self.machine = machine
        self.sign = sign
        self.port = sign.port
        self.term = sign.term
        world, spec = job.world, job.spec
        self.clock = machine.clock
        self.shown = self.clock()
        self.held_until = 0.0
        self._cut_off = False
        self.judged = False
        """whether the head has judged a failure after which no attempt has begun yet"""
        self._next = 0.0  # when the next turn is due, in seconds of the world; 0.0: no turn is planned
        self.loop = loop = StepLoop(self.clock, self.wake)
        memory = job.home / f"{machine.name}.{sign.port}.{job.whole.launch.nproc}"
        memory.mkdir(exist_ok=True)
        self.pages = pages = ClusterPages(memory, job.whole.launch.nproc)
        for page in pages.pages:  # an earlier head, or another story, has left its pages in this directory
            page.format()
        self._plan = plan.read(spec.run_dir)
        self._ends: list[End] = []
        self._machines = machines = IsolatedMachines(spec.nodes.isolate_after, spec.run_dir, FilesInPlace(), self._say)
        kind = UnsharedNodes if not job.story.votes else AllUnshared
        unshared = kind(spec, AllFilesInPlace(spec.run_dir), self.clock, self._say, may_move=True)
        cluster_context = ClusterContext(
            pages=pages,
            least=spec.nodes.least,
            most=spec.nodes.most,
            last_call_seconds=spec.nodes.last_call,
            ranks_each=job.ranks_each,
            job="sim",
            timeout_seconds=spec.nodes.timeout,
            wait_seconds=spec.nodes.wait,
            clock=self.clock,
            say=self._say,
            stop=lambda why: loop.post(Event.STOP),
            hurry=lambda: None,
            pause=lambda: loop.post(Event.PAUSE),
            make_probe=_Alive,
            plan=self._plan,
            run=name,
            begun=self._begun,
            facts=FACTS,
            machines=machines,
            word=name,
            address=machine.name,
            term=sign.term,
            leads=self._leads,
            unshared=unshared,
            voting=job.claims.voting(self),
            copies=job.story.copies,
            may_be_beside=may_be_beside,
        )
        shared_dirs.write((spec.run_dir, spec.checkpoint_dir), name)
        self.cluster = cluster = Cluster(cluster_context)
        context = Context(
            spec=job.whole,
            pages=pages,
            report=self._record,
            loop=loop,  # type: ignore[arg-type]
            clock=self.clock,
            random=world.random.random,
            helpers=HelperProcesses(),
            rules=_RULES,
            collect=ClusterCollectors(cluster),
            bulkheads=Bulkheads(_raise),
            files=AllFilesInPlace(spec.run_dir, spec.log_dir, spec.checkpoint_dir),
            may_start=cluster.may_restart,
            regroups=cluster.must_regroup,
            regroup=cluster.regroup,
        )
        edges = Edges(
            make_group=lambda number, exited: ClusterRanks(
                spec=job.whole,
                pages=pages,
                nodes=cluster,
                clock=self.clock,
                files=FilesInPlace(),
                attempt=number,
                exited=exited,
            ),
            start_saver=lambda: SimSaver(self),  # type: ignore[arg-type, return-value]
            may_begin=lambda _: cluster.is_settled(),
            deaths=cluster.reports,
            report_outcomes=lambda: None,
            processor_time=self._processor_time,
            inherited=Inherited(None, ()),
            reached=-1,
            adoptable=cluster.older.find_adoptable,
            adopt=lambda group: group.adopt(cluster.adopt),  # type: ignore[attr-defined]
            peers=cluster.copies,
        )
        self.supervisor = Supervisor(context, edges)
        if self._plan is not None:
            self.supervisor.incidents.budget = self._plan.budget
        self._used = 0.0
        self._done = False
        self._over_since = 0.0
        self.wake()

    def next_sign(self) -> Sign:
        """Return the next sign of life."""
        self.sign = replace(self.sign, count=self.sign.count + 1)
        return self.sign

    def _leads(self) -> bool:
        return self.shown + STALE > self.clock() >= self.held_until

    def _processor_time(self) -> float:
        """Return the processor seconds used so far, which grow at every look as those of a busy head do.

        Each look uses so much that the supervisor postpones its next look by a quarter of a second.
        """
        self._used += 0.002
        return self._used

    def _begun(self, run: str, attempt: int) -> None:
        budget = self.supervisor.incidents.budget
        self.job.laws.begun(self, budget)
        newest = Plan(
            run=run,
            attempt=attempt,
            every=self.pages.every,
            budget=budget,
            nodes=self.cluster.roster.wanted,
        )
        plan.write(self.job.spec.run_dir, newest)

    def _say(self, sentence: str) -> None:
        if "the clock of" not in sentence:  # the wall clocks of all machines are minutes apart
            self.job.world.record(f"head: {sentence}")

    def _record(self, event: JobEvent) -> None:
        if isinstance(event, IncidentJudged):
            self._machines.blame(event.cause.rank // self.job.ranks_each, event.cause.kind)
            if event.verdict.restart:
                self.judged = True
        if sentence := event.sentence():
            self._say(sentence)

    def history_of(self, place: int, step: int) -> str | None:
        """Return the history of the snapshot that would be saved for a place, or None if no node can supply the step.

        The snapshot is the place's own, or the one that was rescued on another node.
        """
        first = place * self.job.ranks_each
        ((home, _),) = self.cluster.copies.lost_snapshots.by_place({first: None}).items()
        holder = self.holder(home)
        if holder is None:
            return None
        if home == place:
            return dict(holder.memory.slots).get(step)
        return dict([holder.memory.rescued.get(place, (-1, ""))]).get(step)

    def holder(self, place: int) -> Machine | None:
        """Return the machine of a place, or None if no agent there can be asked."""
        member = self.cluster.roster.at(place)
        if member is None:
            return None
        return next(
            (machine for machine in self.job.machines if machine.name == member.machine and machine.agent_awake), None
        )

    def accept(self, end: End) -> None:
        """Accept an agent's connection."""
        self._ends = [known for known in self._ends if known.open]
        self._ends.append(end)
        end.sleeps = self.sleeps
        end.wake = self.wake
        self.cluster.arrivals.accepted(end)  # type: ignore[arg-type]

    def die(self) -> None:
        """End as by SIGKILL: nothing is heard any more, and all connections end."""
        self.lives = False
        for end in self._ends:
            end.on_message = lambda message: None
            end.on_end = lambda why: None
            end.close()
        self.close()

    def close(self) -> None:
        """Release all resources; further calls do nothing."""
        if not self._closed:
            self._closed = True
            self.pages.close()
            self.supervisor.incidents.kernel.close()
            os.close(self.cluster.reports.fd)

    def sleeps(self) -> bool:
        """Return whether the process is stopped, or its machine frozen."""
        return self._stalled > 0 or self.machine.frozen

    def stall(self, seconds: float) -> None:
        """Stop the process, as by SIGSTOP, for some seconds."""
        self.job.world.record(f"the head of term {self.term} is stopped for {seconds:g} s")
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
        """Plan a turn within at most `within` seconds, because something has happened."""
        world = self.job.world
        when = world.now + world.random.random() * within
        if not self._next or when < self._next:
            self._next = when
            world.after(when - world.now, self._turn, when)

    def _turn(self, when: float) -> None:
        if not self.lives or when != self._next:
            return
        self._next = 0.0
        wait = 0.05
        if not self.sleeps():
            self._step()
            due = self.loop.next_due(self.supervisor.next_poll_at())
            wait = min(max(self.clock.until(due), 0.01), 0.15)
        if self.lives and not self._next:
            self._next = self.job.world.now + wait + self.job.world.random.random() * 0.03
            self.job.world.after(self._next - self.job.world.now, self._turn, self._next)

    def _step(self) -> None:
        supervisor = self.supervisor
        self.loop.step(supervisor.handle)  # type: ignore[arg-type]
        if not supervisor.over:
            self.cluster.poll()
            supervisor.poll()
            self._give_way()
            if self.job.story.votes and self.cluster.leadership.unseen_seconds() > _ALONE:
                self.job.world.record(f"the head of term {self.term} ends without a majority")
                self.job.claims.lost_majority = True
                self.die()
        elif not self._done:
            self._over_since = self._over_since or self.clock()
            seen = self._leads() and self.shown >= self._over_since
            if seen or self.clock() > self._over_since + _UNSEEN:
                self._end()

    def _end(self) -> None:
        job = self.job
        code = exit_code(self.supervisor)
        self._done = True
        job.code = code
        job.laws.ended(code, self)
        self.cluster.end(code, keep=False)
        job.claims.end(self, code)
        plan.forget(job.spec.run_dir)
        job.world.record(f"head: {self.supervisor.state.value}")
        job.over = True
