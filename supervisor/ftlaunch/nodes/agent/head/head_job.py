"""The head's job: connects the one-machine supervisor to nodes instead of local processes, and ends the job.

`HeadJob` is what the head's event loop drives. It runs in the head's process, in the loop's one thread.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable

from ftlaunch.checkpoints.saver_client import Saver, SaverLink
from ftlaunch.checkpoints.stores.keeper_link import KeeperLink
from ftlaunch.checkpoints.stores.keeping_saver import KeepingSaver
from ftlaunch.checkpoints.stores.load_note import read_note
from ftlaunch.checkpoints.stores.opening import StoreOpening
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
from ftlaunch.nodes.channel.claims import STALE_PART
from ftlaunch.nodes.channel.stream import format_endpoint
from ftlaunch.nodes.cluster.cluster import FENCE_SECONDS, Cluster
from ftlaunch.nodes.cluster.cluster_autopsy import ClusterCollectors
from ftlaunch.nodes.cluster.cluster_context import ClusterContext
from ftlaunch.nodes.cluster.cluster_saver import ClusterSaver
from ftlaunch.nodes.cluster.head_store import HeadStore
from ftlaunch.nodes.cluster.log_pieces import LogPieces
from ftlaunch.nodes.cluster.membership import facts, plan, shared_dirs
from ftlaunch.nodes.cluster.membership.fences import PortProbe
from ftlaunch.nodes.cluster.membership.fingerprint import job_of
from ftlaunch.nodes.cluster.membership.isolated_machines import IsolatedMachines
from ftlaunch.nodes.cluster.membership.lineage import run_of
from ftlaunch.nodes.cluster.membership.plan import Plan
from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch.nodes.cluster.mirrors.cluster_ranks import ClusterRanks
from ftlaunch.nodes.cluster.unshared_nodes import UnsharedNodes
from ftlaunch.policy.states import Event, JobState
from ftlaunch.ranks.group import RankGroup
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.failures import CallFailed
from ftlaunch.reporting.events.incidents import IncidentJudged
from ftlaunch.reporting.events.job import StopRequested
from ftlaunch.reporting.reporter import Reporter
from ftlaunch.spec.job_spec import LOADED, JobSpec
from ftlaunch.spec.parsing import rule_parser
from ftlaunch.system.control_socket import Control
from ftlaunch.system.file_thread import PATIENCE_SECONDS
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.signals import Signals
from ftlaunch_contract import protocol
from ftlaunch_contract.pages.page import NONE

_ALONE_SECONDS = 30.0  # without the answers of a majority of the nodes that elect the head, before it ends
_GIVE_WAY_SECONDS = 3.0  # without a sign of life; the first candidates need less than two to take over
_UNSEEN_SECONDS = 30.0  # that the end of the job waits for storage to confirm that this head still leads
_FAREWELL_SECONDS = 3.0  # that the agents are given to hear that the job is over


class HeadJob:
    """Runs the supervisor of a job of several nodes, then dismisses the agents."""

    storage_answers = True
    """False if the saver had to be left behind in a system call"""

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
        store: StoreOpening | None,
        name: str,
        *,
        may_be_beside: bool,
    ) -> None:
        """Create the cluster and the supervisor; take up the plan of a head that has died.

        Args:
            spec: the job as every node has it.
            world: the same job with the ranks of all nodes as one machine's.
            workspace: the files of the job, and its memory directory with the mirrors of the ranks' pages.
            reporter: takes events and sentences for the user.
            signals: signals to the head's process.
            helpers: starts helper processes.
            loop: the head's event loop.
            random: returns numbers in [0, 1).
            reached: the newest step that a killed head knew of, or -1.
            life: this head's sign of life.
            store: the checkpoint store of the job, open; None: there is none.
            name: a random name of the life of the job that begins, unless the plan's goes on.
            may_be_beside: whether the replaced head was on another machine and is not known to be dead.

        Raises:
            OSError: a system call failed.
            Unusable: a directory that all nodes must share cannot be written.
        """
        self._may_be_beside = may_be_beside
        self._spec = spec
        self._loop = loop
        self._reporter = reporter
        self._pages = _mirrors(workspace)
        self._plan = plan.read(spec.run_dir)
        self._reached = reached
        self._machines = machines = IsolatedMachines(
            spec.nodes.isolate_after, spec.run_dir, workspace.files.of(spec.run_dir), reporter.say
        )
        self._seed = workspace.seed
        self._run = run_of(workspace.fresh_run, name)
        self._in_run_dir = workspace.files.of(spec.run_dir)
        self._life = life
        self._opening = store
        address = spec.saving.checkpoint_store
        self._store = None
        if store is not None and address is not None:
            self._store = HeadStore(address, store.opened, reporter.report)
        self._keeper: KeeperLink | None = None
        self._is_overtaken = False
        self._replaced = ""  # why another head must have taken over, as the checkpoint store shows
        self._signals = signals
        self._unshared = UnsharedNodes(
            spec,
            workspace.files,
            time.monotonic,
            reporter.say,
            may_move=spec.nodes.store is not None or arbiter.may_vote(spec),
        )
        patience_seconds = 2 * (spec.nodes.timeout + FENCE_SECONDS) if self._plan is not None else 0.0
        self._inherited_stop = InheritedStop(time.monotonic() + patience_seconds)
        self.cluster = cluster = Cluster(self._cluster_context(spec))
        self._control = Control(workspace.memory_dir)
        rules = (*spec.restarts.fault_rules, *rule_parser.builtin())
        context = Context(
            spec=world,
            pages=self._pages,
            report=self._report,
            loop=loop,
            clock=time.monotonic,
            random=random,
            helpers=helpers,
            rules=rules,
            collect=ClusterCollectors(cluster),
            bulkheads=Bulkheads(lambda failed: self._report(CallFailed(failed))),
            files=workspace.files,
            may_start=cluster.may_restart,
            regroups=cluster.must_regroup,
            regroup=cluster.regroup,
            hosts=machines.hosts,
        )
        self.supervisor = Supervisor(context, self._edges(context, workspace))
        if self._plan is not None:  # the job goes on: restarts that the dead head has spent stay spent
            self.supervisor.incidents.budget = self._plan.budget
        endpoint = f"{life.sign.address}:{life.sign.port}"
        head_requests = HeadRequests(
            endpoint=endpoint,
            cluster=cluster,
            machines=machines,
            overview=self.supervisor.overview,
            report=reporter.report,
        )
        self._requests = StopRequests(context, signals, self._control, self.supervisor, head_requests.verbs())
        self._requests.later["logs"] = cluster.logs.answer
        cluster.on_ask = self._requests.serve
        self._log_pieces = LogPieces(loop, spec.log_dir)
        cluster.logs.serve_own = self._log_pieces.serve
        self._cut_off = False
        self._ended = 0.0  # when the agents were told that the job is over, or 0
        self._over_since = 0.0  # when the supervisor was first seen to have ended, or 0
        self._held = NONE  # the newest step in memory that is lost unless missing nodes come back

    def _cluster_context(self, spec: JobSpec) -> ClusterContext:
        nodes = spec.nodes
        loop = self._loop
        life = self._life
        return ClusterContext(
            pages=self._pages,
            least=nodes.least,
            most=nodes.most,
            last_call_seconds=nodes.last_call,
            ranks_each=spec.launch.nproc,
            job=job_of(spec),
            timeout_seconds=nodes.timeout,
            wait_seconds=nodes.wait,
            clock=time.monotonic,
            say=self._reporter.say,
            stop=self._stop,
            hurry=lambda: loop.post(Event.HURRY),
            pause=lambda: loop.post(Event.PAUSE),
            make_probe=PortProbe,
            plan=self._plan,
            run=self._run,
            begun=self._note_plan,
            facts=facts.gather(spec),
            machines=self._machines,
            word=_shared_word(spec),
            address=life.sign.address,
            term=life.sign.term,
            leads=self._leads,
            unshared=self._unshared,
            store=self._store,
            load_address=spec.saving.load_address,
            load_note=read_note(spec.run_dir / LOADED),
            copies=nodes.peer_interval,
            report=self._reporter.report,
            may_be_beside=self._may_be_beside,
            give_way=self._give_way_to,
            voting=life if arbiter.may_vote(spec) else None,
            seed=self._seed,
        )

    def _edges(self, context: Context, workspace: Workspace) -> Edges:
        world = context.spec
        loop = self._loop
        pages = self._pages
        cluster = self.cluster
        term = self._life.sign.term
        logs = workspace.files.of(world.log_dir)
        marker = f"{protocol.ENV_MEMORY_DIR}={workspace.memory_dir}"

        if self._opening is not None and self._store is not None:
            self._keeper = KeeperLink(
                self._opening, world.saving, report=self._reporter.report, overtaken=self._stop_overtaken
            )
            self._store.ask_keeper = self._keeper.ask

        def start_saver() -> Saver:
            own = SaverLink(context.helpers, marker, workspace.locks)
            saver = ClusterSaver(
                own=own,
                cluster=cluster,
                pages=pages,
                listen=loop.register,
                ignore=loop.unregister,
                claim=(arbiter.place_of(world), term),
                store=self._store,
            )
            if self._keeper is None:
                return saver
            return KeepingSaver(saver, self._keeper, world.saving.checkpoint_cache_max_size, self._reporter.report)

        return Edges(
            make_group=lambda number, exited: ClusterRanks(world, pages, cluster, time.monotonic, logs, number, exited),
            start_saver=start_saver,
            may_begin=lambda _: cluster.is_settled(),
            deaths=cluster.reports,
            report_outcomes=self._reporter.report_outcomes,
            processor_time=time.thread_time,
            inherited=workspace.inherited,
            reached=self._reached,
            adoptable=self.cluster.older.find_adoptable,
            adopt=self._adopt,
            peers=cluster.copies,
        )

    def _report(self, event: JobEvent) -> None:
        if isinstance(event, IncidentJudged):
            self._machines.blame(event.cause.rank // self._spec.launch.nproc, event.cause.kind)
        if isinstance(event, StopRequested):
            self.cluster.send_all("stopping")
        self._reporter.report(event)

    def _stop_overtaken(self, reason: str) -> None:
        """Stop the job, whose checkpoint store another process keeps now. A scheduler must not start it again here.

        Where nodes can replace the head, that process is most likely the next head, and the nodes here must find it.
        """
        if self._spec.nodes.store is not None or self._life.record is not None:
            self._replaced = reason
            return
        self._is_overtaken = True
        self._requests.stop(reason)

    def _stop(self, why: str) -> None:
        self._inherited_stop.ask(why)
        self._stop_if_due()

    def _stop_if_due(self) -> None:
        begun = self.supervisor.state is not JobState.READY
        if why := self._inherited_stop.due(time.monotonic(), begun=begun):
            self._requests.stop(why)

    def _adopt(self, group: RankGroup) -> None:
        assert isinstance(group, ClusterRanks)
        group.adopt(self.cluster.adopt)

    def _note_plan(self, run: str, attempt: int) -> None:
        """Write the plan of a new attempt, for a head that takes over, before the nodes are told of the attempt.

        The write is waited for only a moment, because the nodes must go on hearing this head. A head that takes over
        before the plan is written ends the attempt and begins another one.

        Args:
            run: names the life of the job.
            attempt: the number of the attempt.
        """
        new_plan = Plan(
            run=run,
            attempt=attempt,
            every=self._pages.every,
            budget=self.supervisor.incidents.budget,
            nodes=self.cluster.roster.wanted,
        )
        self._in_run_dir.write(
            lambda: plan.write(self._spec.run_dir, new_plan), self._cannot_note_plan, replaces=plan.NAME
        )
        self.cluster.send_plan(new_plan)
        self._in_run_dir.flush(PATIENCE_SECONDS)

    def _cannot_note_plan(self, error: OSError) -> None:
        self._reporter.say(f"cannot write {self._spec.run_dir / plan.NAME}: {error.strerror}")

    # --- for the event loop -----------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Pass a posted event to the supervisor's state table."""
        self.supervisor.handle(event)

    def next_poll_at(self) -> float:
        """Return the moment of the next `poll`, in monotonic seconds."""
        return self.supervisor.next_poll_at()

    def poll(self) -> None:
        """Check the nodes and their ranks. Once the job is over, tell the agents to end.

        Raises:
            Deposed: another head has taken over.
        """
        if self._replaced:
            raise Deposed(f"{self._replaced}: this head ends, and its nodes look for the one that leads")
        if not self.supervisor.over:
            self.cluster.poll()
            self.supervisor.poll()
            self._stop_if_due()
            self._give_way()
            self._end_without_majority()
        elif not self._ended and self._may_end(time.monotonic()) and self._are_logs_read():
            self._ended = time.monotonic()
            self._held = self._newest_unsaved()
            self._reporter.report(self.supervisor.ended(self.code))
            self._reporter.write_all()  # now, because nodes with run dirs of their own get the rest of the journal
            self.cluster.end(self.code, keep=bool(self.supervisor.final_save.error) or self._held != NONE)

    def _are_logs_read(self) -> bool:
        """Return whether those who follow logs of other nodes have the last lines: a node ends with the job."""
        self.cluster.logs.poll()
        return self.cluster.logs.have_been_read()

    def fail(self, error: Exception) -> None:
        """End the job in good order after an error of the head's own.

        Raises:
            Deposed: `error` itself, if another head has taken over; a replaced head ends nothing.
        """
        if isinstance(error, Deposed):
            raise error
        self.supervisor.fail(error)

    def _may_end(self, now: float) -> bool:
        """Return whether storage has just shown that no other head leads, or has not answered for long.

        A head that was replaced may not know so yet, and must not end the job.
        """
        if not self._over_since:
            self._over_since = now
            self._life.check_now()
        seen = self._life.shown_at >= self._over_since and self._leads()
        return seen or now > self._over_since + _UNSEEN_SECONDS

    def _leads(self) -> bool:
        return self._life.age_seconds() < self._spec.nodes.timeout * STALE_PART

    def _give_way(self) -> None:
        """Stop showing signs of life if all other machines were lost at once, so that one of them can take over."""
        cut_off = self.cluster.leadership.is_cut_off()
        if cut_off and not self._cut_off:
            self._life.hold_back(_GIVE_WAY_SECONDS)
        self._cut_off = cut_off

    def _end_without_majority(self) -> None:
        """End if the nodes that elect the head have not answered for long: they may have elected another one.

        Raises:
            Deposed: this head ends. What it has not saved stays in the memory of the nodes.
        """
        record = self._life.record
        patience = min(_ALONE_SECONDS, self._spec.nodes.wait)
        if record is not None and self.cluster.leadership.unseen_seconds() > patience:
            voters = record.all_voters
            where = ", ".join(format_endpoint(voter.address, voter.port) for voter in voters)
            raise Deposed(
                f"fewer than {len(voters) // 2 + 1} of the {len(voters)} nodes that elect the head ({where}) have"
                f" answered for {patience:g} s: this head ends, the newest steps stay in the memory of the nodes, and"
                " the same command goes on from there"
            )

    def _give_way_to(self, address: str, port: int, term: int) -> None:
        """End, because the nodes have elected a head elsewhere, unless they have elected this one since.

        As long as no node has come, not even the one of this machine, nobody would hear where that head is. It will say
        so again.

        Raises:
            Deposed: this head ends, and its nodes go there.
        """
        is_elected = self._life.record is not None and self._life.sign.term >= term
        if is_elected or not self.cluster.left:
            return
        self.cluster.send_elsewhere(address, port)
        where = format_endpoint(address, port)
        raise Deposed(f"the nodes of this job have elected a head at {where}: this one ends, and its nodes go there")

    def _newest_unsaved(self) -> int:
        """Return the newest step that is held only in memory while nodes are missing, or NONE.

        Nodes that have come back count too, although they have no place before the next attempt.
        """
        newest = max(self.cluster.find_newest_unplaced(), *(max(page.slot_steps()) for page in self._pages.pages))
        apart = self.cluster.roster.vacant and newest > max(self.supervisor.saving.committed, 0)
        return newest if apart else NONE

    def kept(self) -> str:
        """Return a sentence about the step that stays in memory for missing nodes; empty if there is none."""
        if self._held == NONE:
            return ""
        return (
            f"step {self._held} could not be saved without the missing nodes: the memory of the others is kept, and the"
            " same command goes on from there if the missing ones come back with theirs"
        )

    @property
    def over(self) -> bool:
        """Whether the job has ended and the agents know that, or have had their time to hear."""
        if not self.supervisor.over or not self._ended:
            return False
        return not self.cluster.left or time.monotonic() > self._ended + _FAREWELL_SECONDS

    @property
    def code(self) -> int:
        """The exit code of a job that has ended, which every agent ends with."""
        if self._is_overtaken:
            return self.supervisor.no_requeue_code
        code = exit_code(self.supervisor)
        return protocol.EXIT_SAVED if code == protocol.EXIT_STOPPED and self._held != NONE else code

    def run(self) -> int:
        """Run the job to its end. Return the exit code."""
        self.supervisor.begin_when_ready()
        self._loop.run(self)
        self.storage_answers = self.supervisor.saving.work() is None
        patience_seconds = self._spec.grace if self.storage_answers else 0.0
        shared = (self._spec.run_dir, self._spec.checkpoint_dir)
        closing = Closing(self._reporter.complain)
        closing("write down what was learned of the job's limits", self.supervisor.close)
        closing("remove the control socket", self._control.close)
        closing("end the thread that reads logs for others", self._log_pieces.close)
        closing("remove the notes by which nodes find that they share directories", lambda: shared_dirs.forget(shared))
        with contextlib.suppress(OSError):  # a plan left behind is harmless: no node runs its attempt
            plan.forget(self._spec.run_dir)
        if self._keeper is not None:
            finish = self._keeper.finish
            closing(
                "bring the last checkpoints to the store",
                lambda: finish(patience_seconds, lambda: bool(self._signals.read())),
            )
        closing("end the savers", lambda: self.supervisor.saving.link.close(patience_seconds))
        return self.code


def _shared_word(spec: JobSpec) -> str:
    """Write a random word into the directories that all nodes must share, and return the word.

    Raises:
        Unusable: one of the directories cannot be written.
    """
    word = secrets.token_hex(16)
    try:
        shared_dirs.write((spec.run_dir, spec.checkpoint_dir), word)
    except OSError as error:
        raise Unusable(f"cannot start: {error.filename or spec.run_dir}: {error.strerror}") from error
    return word


def _mirrors(workspace: Workspace) -> ClusterPages:
    """Return the mirrors of the nodes' pages, cleared of what a killed head left: the nodes report what they hold."""
    pages = workspace.pages
    assert isinstance(pages, ClusterPages)
    pages.forget(0, len(pages))
    return pages
