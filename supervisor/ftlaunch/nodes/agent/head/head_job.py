"""The supervisor of a job of several nodes, and what it works with: the nodes where one machine has its ranks."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable

from ftlaunch.checkpoints.resume import Inherited
from ftlaunch.checkpoints.saver_client import SaverLink
from ftlaunch.common.bulkheads import Bulkheads
from ftlaunch.engine.closing import Closing
from ftlaunch.engine.context import Context, Edges
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.engine.main import exit_code
from ftlaunch.engine.stop_requests import StopRequests
from ftlaunch.engine.supervisor import Supervisor
from ftlaunch.engine.workspace import Unusable, Workspace
from ftlaunch.nodes.agent.head.head_requests import HeadRequests
from ftlaunch.nodes.agent.head.inherited_stop import InheritedStop
from ftlaunch.nodes.agent.head.sign_of_life import Deposed, SignOfLife
from ftlaunch.nodes.channel import arbiter
from ftlaunch.nodes.cluster.around import Around
from ftlaunch.nodes.cluster.cluster import FENCE, Cluster
from ftlaunch.nodes.cluster.cluster_autopsy import ClusterCollectors
from ftlaunch.nodes.cluster.cluster_saver import ClusterSaver
from ftlaunch.nodes.cluster.leadership import STALE_PART
from ftlaunch.nodes.cluster.membership import facts, plan, shared_dirs
from ftlaunch.nodes.cluster.membership.fences import PortProbe
from ftlaunch.nodes.cluster.membership.fingerprint import job_of
from ftlaunch.nodes.cluster.membership.isolated_machines import IsolatedMachines
from ftlaunch.nodes.cluster.membership.lineage import run_of
from ftlaunch.nodes.cluster.membership.plan import Plan
from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch.nodes.cluster.mirrors.cluster_ranks import ClusterRanks
from ftlaunch.policy.states import Event, JobState
from ftlaunch.ranks.group import RankGroup
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.failures import CallFailed
from ftlaunch.reporting.events.incidents import IncidentJudged
from ftlaunch.reporting.events.job import StopRequested
from ftlaunch.reporting.reporter import Reporter
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.parsing import rule_parser
from ftlaunch.system.control_socket import Control
from ftlaunch.system.file_thread import PATIENCE
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.signals import Signals
from ftlaunch_contract import protocol
from ftlaunch_contract.pages.page import NONE

_WAY = 3.0  # seconds; the first candidates need less than two
_UNSEEN = 30.0  # seconds that the end of the job waits for storage to see the head
_FAREWELL = 3.0  # seconds that the agents are given to hear that the job is over


class HeadJob:
    """What the head's event loop works for: the supervisor, then the agents' leave."""

    storage_answers = True
    """whether the saver was not left behind in a system call"""

    def __init__(
        self,
        spec: JobSpec,
        world: JobSpec,
        workspace: Workspace,
        reporter: Reporter,
        signals: Signals,
        helpers: HelperProcesses,
        loop: EventLoop[Event],
        random: Callable[[], float],
        reached: int,
        life: SignOfLife,
        *,
        may_be_beside: bool,
    ) -> None:
        """spec: as every node has it. world: its ranks are all those of the job. Raises OSError or Unusable.

        reached: the newest step that a killed head knew of, or -1. may_be_beside: the head before was on another
        machine, and nobody knows that it is dead.
        """
        self._may_be_beside = may_be_beside
        self._spec, self._loop, self._reporter = spec, loop, reporter
        self._pages, self._plan, self._reached = _mirrors(workspace), plan.read(spec.run_dir), reached
        self._machines = machines = IsolatedMachines(
            spec.nodes.isolate_after, spec.run_dir, workspace.files.of(spec.run_dir), reporter.say
        )
        self._seed = workspace.seed
        self._run = run_of(workspace.fresh_run, secrets.token_hex(8))
        self._in_run_dir = workspace.files.of(spec.run_dir)
        self._life, patience = life, 2 * (spec.nodes.timeout + FENCE) if self._plan is not None else 0.0
        self._inherited_stop = InheritedStop(time.monotonic() + patience)
        self.cluster = cluster = Cluster(self._around(spec))
        self._control = Control(workspace.memory_dir)
        rules = (*spec.restarts.fault_rules, *rule_parser.builtin())
        context = Context(
            spec=world,
            pages=self._pages,
            tell=self._tell,
            loop=loop,
            clock=time.monotonic,
            random=random,
            helpers=helpers,
            rules=rules,
            collect=ClusterCollectors(cluster),
            bulkheads=Bulkheads(lambda failed: self._tell(CallFailed(failed))),
            files=workspace.files,
            may_start=cluster.may_restart,
            regroups=cluster.regroups,
            regroup=cluster.regroup,
            hosts=machines.hosts,
        )
        self.supervisor = Supervisor(context, self._edges(context, workspace))
        if self._plan is not None:  # the job has not ended: whatever becomes of the ranks that run, this was spent
            self.supervisor.incidents.budget = self._plan.budget
        endpoint = f"{life.sign.address}:{life.sign.port}"
        asked = HeadRequests(endpoint, cluster, machines, self.supervisor.overview, reporter.tell)
        self._requests = StopRequests(context, signals, self._control, self.supervisor, asked.verbs())
        cluster.on_ask = self._requests.answer
        self._cut_off, self._ended = False, 0.0  # when the agents were told that the job is over
        self._over_since = 0.0  # when the supervisor was first seen to have ended
        self._held = NONE  # the newest step in memory that is lost unless missing nodes come back

    def _around(self, spec: JobSpec) -> Around:
        nodes, loop, life, say = spec.nodes, self._loop, self._life, self._reporter.say
        return Around(
            self._pages, nodes.least, nodes.most, nodes.last_call, spec.launch.nproc, job_of(spec), nodes.timeout,
            nodes.wait, time.monotonic, say, self._stop, lambda: loop.post(Event.HURRY),
            lambda: loop.post(Event.PAUSE), PortProbe, self._plan, self._run, self._note_plan,
            facts.gathered(spec), self._machines, _shared_word(spec), life.sign.address, life.sign.term,
            self._leads, nodes.peer_interval, self._reporter.tell, may_be_beside=self._may_be_beside, seed=self._seed,
        )  # fmt: skip

    def _edges(self, context: Context, workspace: Workspace) -> Edges:
        world, loop, pages, cluster = context.spec, self._loop, self._pages, self.cluster
        term, logs = self._life.sign.term, workspace.files.of(world.log_dir)
        marker = f"{protocol.ENV_MEMORY_DIR}={workspace.memory_dir}"

        def start_saver() -> ClusterSaver:
            own = SaverLink(context.helpers, marker, workspace.locks)
            return ClusterSaver(own, cluster, pages, loop.register, loop.unregister, (arbiter.place_of(world), term))

        return Edges(
            make_group=lambda number, exited: ClusterRanks(world, pages, cluster, time.monotonic, logs, number, exited),
            start_saver=start_saver,
            may_begin=lambda _: cluster.settled(),
            deaths=cluster.reports,
            tell_outcomes=self._reporter.tell_outcomes,
            processor_time=time.thread_time,
            inherited=Inherited(workspace.load, workspace.checkpoints.unfinished),
            reached=self._reached,
            adoptable=self.cluster.older.adoptable,
            adopt=self._adopt,
            peers=cluster.copies,
        )

    def _tell(self, event: JobEvent) -> None:
        if isinstance(event, IncidentJudged):
            self._machines.blame(event.cause.rank // self._spec.launch.nproc, event.cause.kind)
        if isinstance(event, StopRequested):
            self.cluster.tell_all("stopping")
        self._reporter.tell(event)

    def _stop(self, why: str) -> None:
        self._inherited_stop.ask(why)
        self._heed_stop()

    def _heed_stop(self) -> None:
        begun = self.supervisor.state is not JobState.READY
        if why := self._inherited_stop.due(time.monotonic(), begun=begun):
            self._requests.stop(why)

    def _adopt(self, group: RankGroup) -> None:
        assert isinstance(group, ClusterRanks)
        group.adopt(self.cluster.adopt)

    def _note_plan(self, run: str, attempt: int) -> None:
        """Note what another head must know, should this one die, before the nodes are told.

        A file system that stands still is waited for a moment: the nodes must go on hearing this head. A head that
        takes its place before the plan is written ends the attempt, and begins another one.
        """
        now = self._pages.every, self.supervisor.incidents.budget, self.cluster.roster.wanted
        noted = Plan(run, attempt, *now)
        self._in_run_dir.write(
            lambda: plan.write(self._spec.run_dir, noted), self._cannot_note_plan, replaces=plan.NAME
        )
        self._in_run_dir.flush(PATIENCE)

    def _cannot_note_plan(self, error: OSError) -> None:
        self._reporter.say(f"cannot write {self._spec.run_dir / plan.NAME}: {error.strerror}")

    # --- for the event loop -----------------------------------------------------------------------------------

    def take(self, event: Event) -> None:
        """Take an event through the table."""
        self.supervisor.take(event)

    def next_look(self) -> float:
        """When to look again at the latest."""
        return self.supervisor.next_look()

    def look(self) -> None:
        """See what the nodes and their ranks do; once the job is over, have the agents end."""
        if not self.supervisor.over:
            self.cluster.look()
            self.supervisor.look()
            self._heed_stop()
            self._give_way()
        elif not self._ended and self._may_end(time.monotonic()):
            self._ended = time.monotonic()
            self._held = self._newest_apart()
            self.cluster.end(self.code, keep=bool(self.supervisor.final_save.error) or self._held != NONE)

    def fail(self, error: Exception) -> None:
        """End the job in good order for an error of the head's own; a head that was replaced ends nothing."""
        if isinstance(error, Deposed):
            raise error
        self.supervisor.fail(error)

    def _may_end(self, now: float) -> bool:
        """Whether no other head has the job now: one that was replaced may not know it yet, and ends nothing."""
        if not self._over_since:
            self._over_since = now
            self._life.look_now()
        seen = self._life.shown >= self._over_since and self._leads()
        return seen or now > self._over_since + _UNSEEN

    def _leads(self) -> bool:
        return self._life.age() < self._spec.nodes.timeout * STALE_PART

    def _give_way(self) -> None:
        """A head that has lost all other machines at once lets one of them take its place, if one of them lives."""
        cut_off = self.cluster.leadership.is_cut_off()
        if cut_off and not self._cut_off:
            self._life.hold_back(_WAY)
        self._cut_off = cut_off

    def _newest_apart(self) -> int:
        """The newest step that nodes hold and storage does not, where others are missing that may hold it, too.

        Also of a node that has come back: it has no place before the next attempt.
        """
        newest = max(self.cluster.newest_unplaced(), *(max(page.slot_steps()) for page in self._pages.pages))
        apart = self.cluster.roster.vacant and newest > max(self.supervisor.saving.committed, 0)
        return newest if apart else NONE

    def kept(self) -> str:
        """A sentence on what is in memory only, where nodes are missing; else nothing."""
        if self._held == NONE:
            return ""
        return (
            f"step {self._held} could not be saved without the missing nodes: the memory of the others is kept, and the"
            " same command goes on from there if the missing ones come back with theirs"
        )

    @property
    def over(self) -> bool:
        """Whether the job has ended and the agents know it."""
        told = self._ended and (not self.cluster.left or time.monotonic() > self._ended + _FAREWELL)
        return self.supervisor.over and bool(told)

    @property
    def code(self) -> int:
        """The exit code of a job that has ended: of every agent."""
        code = exit_code(self.supervisor)
        return protocol.EXIT_SAVED if code == protocol.EXIT_STOPPED and self._held != NONE else code

    def run(self) -> int:
        """Run to the end; returns the exit code."""
        self.supervisor.begin_when_ready()
        self._loop.run(self)
        self.storage_answers = self.supervisor.saving.work() is None
        patience = self._spec.grace if self.storage_answers else 0.0
        shared = (self._spec.run_dir, self._spec.checkpoint_dir)
        closing = Closing(self._reporter.complain)
        closing("write down what was learned of the job's limits", self.supervisor.close)
        closing("remove the control socket", self._control.close)
        closing("remove the notes by which nodes find that they share directories", lambda: shared_dirs.forget(shared))
        with contextlib.suppress(OSError):  # a later head finds no node that runs its attempt
            plan.forget(self._spec.run_dir)
        closing("end the savers", lambda: self.supervisor.saving.link.close(patience))
        return self.code


def _shared_word(spec: JobSpec) -> str:
    """A word that lies in the directories that all nodes must share from now on. Raises Unusable."""
    word = secrets.token_hex(16)
    try:
        shared_dirs.write((spec.run_dir, spec.checkpoint_dir), word)
    except OSError as error:
        raise Unusable(f"cannot start: {error.filename or spec.run_dir}: {error.strerror}") from error
    return word


def _mirrors(workspace: Workspace) -> ClusterPages:
    """The mirrors of the nodes' pages, without what a killed head has left: the nodes say what their memory holds."""
    pages = workspace.pages
    assert isinstance(pages, ClusterPages)
    pages.forget(0, len(pages))
    return pages
