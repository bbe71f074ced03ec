"""Runs one job on one machine to its end: builds the supervisor, runs its loop, and gives everything back.

`run` is what `ftlaunch` calls in its main thread; the exit code is what `ftlaunch` exits with. The counterpart for
several nodes is `nodes/agent/`.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable

from ftlaunch.autopsy.client import collect_here
from ftlaunch.checkpoints.saver_client import Saver, SaverLink
from ftlaunch.checkpoints.stores.keeper_link import KeeperLink
from ftlaunch.checkpoints.stores.keeping_saver import KeepingSaver
from ftlaunch.checkpoints.stores.loading import LoadFetch
from ftlaunch.checkpoints.stores.opening import StoreOpening
from ftlaunch.common.bulkheads import Bulkheads
from ftlaunch.engine.closing import Closing
from ftlaunch.engine.context import Context, Edges
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.engine.outlet_watch import Outlets
from ftlaunch.engine.preemption_watch import watch_for
from ftlaunch.engine.stop_requests import StopRequests
from ftlaunch.engine.supervisor import Supervisor
from ftlaunch.engine.workspace import LIMIT_REACHED, Unusable, Workspace, limit_hint
from ftlaunch.history import job_index
from ftlaunch.memory.recovery_plan import NONE
from ftlaunch.notify.client import NotifierLink
from ftlaunch.policy.states import Event, JobState
from ftlaunch.ranks import environment, log_holes
from ftlaunch.ranks.cpu_affinity import CpuAffinity
from ftlaunch.ranks.exit_watch import ExitWatch
from ftlaunch.ranks.fork_client import Warm
from ftlaunch.ranks.fork_server_watch import ForkServerWatch
from ftlaunch.ranks.gpu_memory import EARLIER_RUN, GpuMemoryWait, MemoryWaitEnd
from ftlaunch.ranks.group import Exited, RankGroup
from ftlaunch.ranks.local_ranks import LocalRanks, Surroundings
from ftlaunch.reporting import messages
from ftlaunch.reporting.events.checkpoints import CheckpointUnfinished
from ftlaunch.reporting.events.failures import CallFailed, JobBrokenOff
from ftlaunch.reporting.events.gpu_memory import of_memory_wait
from ftlaunch.reporting.events.job import JobStarted, StartRefused
from ftlaunch.reporting.events.ranks import ForkServerNews
from ftlaunch.reporting.page_at_end import page_at_end, put_page_aside
from ftlaunch.reporting.reporter import Reporter
from ftlaunch.reporting.sinks import ServiceSink
from ftlaunch.reporting.terminal import Terminal
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.parsing import rule_parser
from ftlaunch.system import descriptor_limit, processes, resources
from ftlaunch.system.control_socket import Control
from ftlaunch.system.gpu_activity import Gpus
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.jobset import restart_attempt
from ftlaunch.system.signals import Signals
from ftlaunch.system.systemd import STOP_COMMAND, ServiceManager
from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import layout, seeds
from ftlaunch_contract.protocol import process_start_time

_KILL_SECONDS = 5.0
"""how long processes may take to die of SIGKILL"""

RANKS_HERE: Callable[[Surroundings, int, Exited], RankGroup] = LocalRanks
"""makes the rank group of an attempt of a job on one machine"""


def run(spec: JobSpec, begun: Callable[[], None]) -> int:
    """Keep one job alive until it is over. Call in the main thread only.

    Args:
        spec: the job.
        begun: called once the run dir is locked, the journal has `job_started`, and the saver runs.

    Returns:
        The exit code (0, 1, 75 or 143).

    Raises:
        Unusable: the job cannot start; the message is a sentence for the user.
    """
    processes.become_subreaper()
    descriptor_limit.raise_limit()
    manager = ServiceManager(os.environ)
    try:
        terminal = Terminal()
    except RuntimeError as error:
        raise Unusable(f"cannot start: {error}{LIMIT_REACHED}") from error
    try:
        with Signals(spec.launch.stop_signals) as signals:
            return _run(spec=spec, terminal=terminal, signals=signals, manager=manager, begun=begun)
    finally:
        terminal.close()


def _run(
    spec: JobSpec, terminal: Terminal, signals: Signals, manager: ServiceManager, begun: Callable[[], None]
) -> int:
    helpers = HelperProcesses()
    store = None if spec.saving.checkpoint_store is None else StoreOpening(spec, helpers, signals.fd)
    load_fetch = None if spec.saving.load_address is None else LoadFetch(spec, helpers, signals.fd)
    workspace = Workspace(spec, lambda line: terminal.say(messages.PREFIX + line), store=store, load_fetch=load_fetch)
    spec = workspace.spec
    notifier = NotifierLink(helpers, spec, dict(os.environ))
    reporter = Reporter(
        spec=spec,
        journal=workspace.journal,
        files=workspace.files,
        notifier=notifier,
        terminal=terminal,
        more=[ServiceSink(manager)],
    )
    reached = report_start(spec, workspace, reporter)
    try:
        job = _Job(
            spec=spec,
            workspace=workspace,
            reporter=reporter,
            signals=signals,
            helpers=helpers,
            reached=reached,
            store=store,
        )
    except OSError as error:
        refusal = Unusable(f"cannot start: {error.filename or 'the saver'}: {error.strerror}{limit_hint(error)}")
        reporter.report(StartRefused(protocol.EXIT_USAGE, str(refusal)))
        reporter.farewell()
        if workspace.pages.newest_common() == NONE:
            workspace.forget_memory()
        workspace.leave(is_written=reporter.write_all())
        raise refusal from error
    if warning := keeps_logs_short(spec):
        reporter.complain(warning)
    if warning := messages.limited_files(resources.most_file_bytes()):
        reporter.complain(warning)
    if warning := messages.descriptor_warning(descriptor_limit.limit(), spec.launch.nproc):
        reporter.complain(warning)
    job_index.note(helpers=helpers, loop=job.loop, job_id=spec.job_id, run_dir=spec.run_dir)
    reporter.write_all()
    begun()
    try:
        code = job.run(manager)
    except Exception as error:
        job.kill_ranks()
        reporter.report(JobBrokenOff(error))
        reporter.farewell()
        reporter.write_all()
        raise
    closing = Closing(reporter.complain)
    reporter.report(job.supervisor.ended(code))
    is_written = reporter.write_all()  # the exporter reads in the journal how the job has ended
    closing("end the exporter of metrics", job.outlets.close)
    report_unsaved(closing, reporter, job.supervisor.unsaved())
    state = job.supervisor.state
    is_written = is_written and reporter.write_all()
    storage_answers = job.storage_answers and is_written
    write_page(closing, reporter, lambda: page_at_end(helpers, spec, state, storage_answers=storage_answers))
    if not job.supervisor.final_save.error and job.supervisor.internal_error is None:
        closing(f"remove {workspace.memory_dir}, in which nothing is needed any more", workspace.forget_memory)
        note_end(closing, workspace, state, storage_answers=storage_answers)
    leave(terminal, workspace, storage_answers=job.storage_answers, is_written=is_written)
    return code


def leave(terminal: Terminal, workspace: Workspace, *, storage_answers: bool, is_written: bool) -> None:
    """Give back the directories of a job that has ended. Failures go to the terminal only, as the journal is closed.

    Args:
        terminal: shows failures.
        workspace: what is given back.
        storage_answers: whether storage may be touched: no write to storage hangs.
        is_written: whether nothing waits to be written any more.
    """
    closing = Closing(lambda sentence: terminal.say(messages.PREFIX + sentence))
    closing(
        "give back the locks of the job",
        lambda: workspace.leave(storage_answers=storage_answers, is_written=is_written),
    )


def note_end(closing: Closing, workspace: Workspace, state: JobState, *, storage_answers: bool) -> None:
    """Note in the checkpoint directory that a job is over, unless the job was stopped.

    A stopped job is continued by the same command, even with --fresh; a job that is over begins anew with --fresh.
    """
    if state is not JobState.STOPPED and storage_answers:
        closing("note that the job is over", workspace.note_end)


def report_unsaved(closing: Closing, reporter: Reporter, unsaved: str) -> None:
    """Report what could not be saved, and wait a few seconds for the last notices to go out.

    Args:
        closing: runs the wait.
        reporter: reports.
        unsaved: a sentence on the step that could not be saved; empty if all was saved.
    """
    if unsaved:
        reporter.complain(unsaved)
    closing("let the last notices go out", reporter.farewell)


def write_page(closing: Closing, reporter: Reporter, write: Callable[[], str]) -> None:
    """Write the report page of a job that has ended, and say where the page is.

    Args:
        closing: runs `write`.
        reporter: shows the sentence.
        write: writes the page; returns a sentence for the terminal, or "" for none.
    """

    def write_and_say() -> None:
        if sentence := write():
            reporter.say(sentence)

    closing("write the page of the job", write_and_say)


def report_start(spec: JobSpec, workspace: Workspace, reporter: Reporter) -> int:
    """Report what is started and what an earlier run has left.

    Returns:
        The newest step that all ranks of a killed supervisor had completed; -1 if there is none.
    """
    reached, beat = workspace.pages.newest_life()
    restart_notice = workspace.describe_unasked_restart(reached)  # must precede `job_started` in the journal
    killed = (reached, time.monotonic() - beat) if reached >= 0 else None
    pid = os.getpid()
    reporter.report(
        JobStarted(
            spec=spec,
            memory_dir=workspace.memory_dir,
            pid=pid,
            start_time=process_start_time(pid),
            killed_at=killed,
            host=socket.gethostname(),
            stop_command=os.environ.get(STOP_COMMAND),
            jobset_restart=restart_attempt(os.environ),
        )
    )
    for step in workspace.checkpoints.unfinished:
        reporter.report(CheckpointUnfinished(step, layout.incomplete_dir(spec.checkpoint_dir, step)))
    for event in workspace.changes:
        reporter.report(event)
    if page_stays := put_page_aside(spec.run_dir):
        reporter.say(page_stays)
    reporter.say(messages.opening(spec, spec.run_dir))
    if restart_notice:
        reporter.say(restart_notice)
    return reached


class _Job:
    """Builds the supervisor of a job with everything that the supervisor works with, runs it, and closes all parts."""

    storage_answers = True
    """False once the end of the job has left the saver behind in a system call that does not return"""

    def __init__(
        self,
        spec: JobSpec,
        workspace: Workspace,
        reporter: Reporter,
        signals: Signals,
        helpers: HelperProcesses,
        reached: int,
        store: StoreOpening | None,
    ) -> None:
        """Start the fork server, the control socket, the saver, and the programs beside the job; start no rank.

        Args:
            spec: the job.
            workspace: its directories and pages, locked.
            reporter: takes events.
            signals: the signals that stop the job.
            helpers: starts processes.
            reached: the newest step that all ranks of a killed supervisor had completed, or -1.

        Raises:
            OSError: one of the parts cannot be started.
        """
        self._spec = spec
        self._helpers = helpers
        self._closing = Closing(reporter.complain)
        marker = f"{protocol.ENV_MEMORY_DIR}={workspace.memory_dir}"
        base_env = {**os.environ, seeds.ENV_SEED: str(workspace.seed)}
        # The fork server is started before all else that takes time, because the first attempt waits for it.
        fork_server = Warm(
            helpers=helpers,
            spec=spec,
            env=environment.warm_env(spec, base_env, workspace.memory_dir),
            log=spec.log_dir / "warm.log",
            files=workspace.files.of(spec.log_dir),
            report=lambda _, **details: reporter.report(ForkServerNews(details)),
        )
        self._fork_server = fork_server
        loop = EventLoop[Event](time.monotonic)
        self.loop = loop
        self._control = Control(workspace.memory_dir)
        gpus = Gpus()

        def report_memory(end: MemoryWaitEnd) -> None:
            if event := of_memory_wait(end):
                reporter.report(event)

        gpu_memory = GpuMemoryWait(gpus, loop, time.monotonic, report_memory)
        gpu_memory.begin(EARLIER_RUN, workspace.earlier_ranks, workspace.earlier_pids)
        rules = (*spec.restarts.fault_rules, *rule_parser.builtin())
        bulkheads = Bulkheads(lambda failed: reporter.report(CallFailed(failed)))
        context = Context(
            spec=spec,
            pages=workspace.pages,
            report=reporter.report,
            loop=loop,
            clock=time.monotonic,
            random=random.random,
            helpers=helpers,
            rules=rules,
            collect=collect_here(helpers, workspace.memory_dir),
            bulkheads=bulkheads,
            files=workspace.files,
            may_start=lambda: gpu_memory.is_over,
        )
        surroundings = Surroundings(
            spec=spec,
            pages=workspace.pages,
            gpus=gpus,
            gpu_memory=gpu_memory,
            affinity=CpuAffinity(spec.launch.numa_binding, reporter.complain),
            fork_server=fork_server,
            base_env=base_env,
            control=self._control.path,
            marker=marker,
            loop=loop,
            clock=time.monotonic,
            files=workspace.files.of(spec.log_dir),
        )

        self._keeper: KeeperLink | None = None
        if store is not None:
            self._keeper = KeeperLink(store, spec.saving, report=reporter.report, overtaken=self._overtaken)

        def start_saver() -> Saver:
            saver = SaverLink(helpers, marker, workspace.locks)
            if self._keeper is None:
                return saver
            return KeepingSaver(saver, self._keeper, spec.saving.checkpoint_cache_max_size, reporter.report)

        is_settled = ForkServerWatch(fork_server, loop, reporter.say).is_settled
        edges = Edges(
            make_group=lambda number, exited: RANKS_HERE(surroundings, number, exited),
            start_saver=start_saver,
            may_begin=lambda now: is_settled(now) and gpu_memory.is_over,
            deaths=ExitWatch([page.path for page in workspace.pages.pages]),
            report_outcomes=reporter.report_outcomes,
            processor_time=time.thread_time,
            inherited=workspace.inherited,
            reached=reached,
        )
        self.supervisor = Supervisor(context, edges)
        self._is_overtaken = False
        self._signals = signals
        self._requests = StopRequests(
            context=context, signals=signals, control=self._control, supervisor=self.supervisor
        )
        self.outlets = Outlets(helpers=helpers, spec=spec, loop=loop, report=reporter.report, clock=time.monotonic)
        self._preemption = watch_for(
            spec=spec, loop=loop, helpers=helpers, on_notice=self._requests.stop, say=reporter.say
        )

    def _overtaken(self, reason: str) -> None:
        """Stop the job, whose checkpoint store another process keeps now. A scheduler must not start it again here."""
        self._is_overtaken = True
        self._requests.stop(reason)

    def run(self, manager: ServiceManager) -> int:
        """Run the job until it is over, then close all parts except the outlets.

        Args:
            manager: systemd, if ftlaunch is a service: is told regularly that the loop runs.

        Returns:
            The exit code.
        """
        supervisor = self.supervisor
        manager.show_life(self.loop)
        supervisor.begin_when_ready()
        self.loop.run(supervisor)
        self.storage_answers = supervisor.saving.work() is None
        patience = self._spec.grace if self.storage_answers else 0.0
        if self._preemption is not None:
            self._closing("end the look for a preemption notice", self._preemption.close)
        self._closing("dismiss the fork server", self._fork_server.dismiss)
        self._closing("write down what was learned of the job's limits", supervisor.close)
        self._closing("remove the control socket", self._control.close)
        if self._keeper is not None:
            finish = self._keeper.finish
            self._closing(
                "bring the last checkpoints to the store", lambda: finish(patience, lambda: bool(self._signals.read()))
            )
        self._closing("end the saver", lambda: supervisor.saving.link.close(patience))
        self._closing("end the fork server", self._fork_server.close)
        self._closing("close the event loop", self.loop.close)
        return supervisor.no_requeue_code if self._is_overtaken else exit_code(supervisor)

    def kill_ranks(self) -> None:
        """SIGKILL the ranks and the processes that they have started. For an error that has ended the loop.

        Waits up to `_KILL_SECONDS` for the processes to end.
        """
        deadline = time.monotonic() + _KILL_SECONDS
        while not processes.kill_descendants(self._helpers.pids, []) and time.monotonic() < deadline:
            time.sleep(0.01)  # polled, because the kernel announces the end of our own children only


def keeps_logs_short(spec: JobSpec) -> str:
    """Return a warning if `log_max_size` is asked for but cannot limit the logs; else ""."""
    if spec.log_max_size is None:
        return ""
    try:
        why = log_holes.why_not(spec.log_dir)
    except OSError as error:
        why = f"{spec.log_dir}: {error.strerror}"
    return f"cannot keep logs at `log_max_size`: {why}; they grow as without it" if why else ""


def exit_code(supervisor: Supervisor) -> int:
    """Return the exit code of a job that has ended."""
    if supervisor.internal_error is not None:
        return protocol.EXIT_BUG
    if supervisor.state is JobState.DONE:
        return protocol.EXIT_DONE
    if supervisor.state is JobState.FAILED:
        verdict = supervisor.incidents.verdict
        is_permanent = verdict is not None and verdict.is_permanent
        return supervisor.no_requeue_code if is_permanent else protocol.EXIT_GIVEN_UP
    return protocol.EXIT_STOPPED if supervisor.saving.committed == NONE else protocol.EXIT_SAVED
