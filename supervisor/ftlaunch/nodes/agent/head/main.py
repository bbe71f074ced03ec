"""Runs the head of a job of several nodes: the engine of one machine, with ranks on other machines.

`be_head` is called in a process that the starter has forked for the head. The first agent at the endpoint has the head
started, or an agent that replaces a head that is gone. The head outlives the agent that had it started, because that
agent's ranks may end while other nodes go on.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftlaunch.checkpoints.stores.loading import LoadFetch
from ftlaunch.checkpoints.stores.opening import StoreHasOwnerError, StoreOpening
from ftlaunch.engine import main as engine_main
from ftlaunch.engine.closing import Closing
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.engine.outlet_watch import Outlets
from ftlaunch.engine.workspace import Unusable, Workspace
from ftlaunch.memory.directory import remove_memory
from ftlaunch.nodes.agent.head import election
from ftlaunch.nodes.agent.head.election import Elected, Order
from ftlaunch.nodes.agent.head.endpoint_watch import EndpointWatch
from ftlaunch.nodes.agent.head.head_job import HeadJob
from ftlaunch.nodes.agent.head.sign_of_life import Deposed, SignOfLife
from ftlaunch.nodes.agent.head.signpost import Signpost
from ftlaunch.nodes.agent.head.starter import START, TAKE_OVER, UNUSABLE
from ftlaunch.nodes.channel import arbiter
from ftlaunch.nodes.channel.arbiter import Arbiter
from ftlaunch.nodes.channel.connection import Connection
from ftlaunch.nodes.channel.listener import Listener
from ftlaunch.nodes.channel.stream import format_endpoint
from ftlaunch.nodes.cluster import messages as cluster_messages
from ftlaunch.nodes.cluster.beat_pace import beat_seconds, delay_seconds, gather_seconds
from ftlaunch.nodes.cluster.membership import plan
from ftlaunch.nodes.cluster.membership.lineage import life_of
from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch.notify.client import NotifierLink
from ftlaunch.policy.states import Event
from ftlaunch.reporting import messages
from ftlaunch.reporting.page_at_end import page_at_end
from ftlaunch.reporting.reporter import Reporter
from ftlaunch.reporting.terminal import Terminal
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system import descriptor_limit, processes
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.process_end import leave
from ftlaunch.system.signals import Signals
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import EXIT_BUG, EXIT_SAVED, EXIT_USAGE, Resume

_OBJECTS = 100_000
"""the number of new objects after which Python's garbage collector runs. The head makes hardly any reference cycles.
With 16,384 ranks each look creates so many short-lived objects that a default collector would run each time, for 70
ms."""


def be_head(spec: JobSpec, token: bytes, write: int, order: Order) -> None:
    """Become the head if the election is won, run the job, and end this process. Never returns.

    Args:
        spec: the job.
        token: the secret that peers must know.
        write: the write end of the pipe on which the starter is told the head's pid or UNUSABLE. The pipe is closed
            without a number if this process is not the head.
        order: what this process was started for.
    """
    code = EXIT_BUG
    outcome = _Outcome(write)
    try:
        code = _run(spec=spec, token=token, outcome=outcome, order=order)
    except Unusable as error:
        sys.stderr.write(f"{messages.PREFIX}{error}\n")
        sys.stderr.flush()
        outcome.report(UNUSABLE)
        code = EXIT_USAGE
    except Deposed as error:
        sys.stderr.write(f"{messages.PREFIX}{error}\n")
        code = EXIT_SAVED
    except Exception:  # noqa: BLE001 - the last resort: whatever gets here is a bug, and is told so
        sys.stderr.write(f"{messages.PREFIX}a bug of ftlaunch's own, in the head of the job; please report it:\n")
        traceback.print_exc()
    finally:
        leave(code)


class _Outcome:
    """The pipe that tells the starter, once, what became of the head. A closed pipe means that there is no head."""

    def __init__(self, write: int) -> None:
        self._write: int | None = write

    def report(self, number: int) -> None:
        """Send the head's pid, or UNUSABLE, and close the pipe. Later calls do nothing."""
        if self._write is not None:
            with contextlib.suppress(BrokenPipeError):  # its agent was killed meanwhile
                os.write(self._write, b"%d\n" % number)
            os.close(self._write)
            self._write = None


def _run(spec: JobSpec, token: bytes, outcome: _Outcome, order: Order) -> int:
    """Stand for election and serve the job as its head. Return the exit code; 0 if the election was lost.

    Raises:
        Unusable: no head can run with these settings.
        Deposed: another head has taken over.
    """
    _, second, third = gc.get_threshold()
    gc.set_threshold(_OBJECTS, second, third)
    loop = EventLoop[Event](time.monotonic, gather_seconds=gather_seconds(spec.nodes.most))
    door = _Door()
    claims = arbiter.of(spec)

    def listen(address: str, port: int) -> Listener:
        return Listener(
            loop=loop,
            clock=time.monotonic,
            address=address,
            port=port,
            token=token,
            accepted=door.accept,
            say=door.report,
            version=cluster_messages.VERSION,
            silence_seconds=spec.nodes.timeout,
        )

    try:
        elected = election.stand(nodes=spec.nodes, claims=claims, listen=listen, order=order)
    except OSError as error:
        raise Unusable(f"cannot be the head: {error.filename or claims.where}: {error.strerror}") from error
    if elected is None:
        return 0
    if order.what == TAKE_OVER:  # told now: the agent looks for the new head's sign without waiting for the job
        outcome.report(os.getpid())
    processes.become_subreaper()
    descriptor_limit.raise_limit()
    # A head that replaces a dead one goes on with the job, even if the job was begun with --fresh.
    fresh = spec.saving.fresh and order.what == START
    world = replace(
        spec,
        launch=replace(spec.launch, nproc=spec.nodes.most * spec.launch.nproc),
        saving=replace(spec.saving, fresh=fresh),
    )
    terminal = Terminal()
    try:
        with Signals(spec.launch.stop_signals) as signals:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            takes_over = order.what == TAKE_OVER
            return _serve(
                spec=spec,
                world=world,
                loop=loop,
                door=door,
                terminal=terminal,
                signals=signals,
                claims=claims,
                elected=elected,
                outcome=outcome,
                token=token,
                takes_over=takes_over,
                ranks_run=order.what != START,
            )
    finally:
        elected.listener.close()
        loop.close()
        terminal.close()


def _is_led_elsewhere(
    loop: EventLoop[Any], door: _Door, outcome: _Outcome, signals: Signals, terminal: Terminal
) -> bool:
    """Wait a moment for a head that the nodes have elected elsewhere. If there is one, send nodes there until it ends.

    A signal to stop ends both.

    Returns:
        Whether there was one.
    """
    signpost = Signpost(time.monotonic)
    loop.register(signals.fd, signpost.end)
    door.accepted = signpost.accept
    door.say = _say_nothing
    loop.run(signpost)
    if signpost.where is None:
        return False
    terminal.say(f"{messages.PREFIX}the job is led from {format_endpoint(*signpost.where)}: nodes are sent there")
    outcome.report(os.getpid())
    signpost.is_over_once_told = False
    loop.run(signpost)
    return True


def _say_nothing(sentence: str) -> None:
    """Drop a sentence about refused connections: the elected head says such things."""


class _Door:
    """Passes the listener's peers and sentences on to the job, which is created after the listener.

    Both attributes are set before the loop runs, and the listener calls nothing earlier.
    """

    accepted: Callable[[Connection], None]
    say: Callable[[str], None]

    def accept(self, peer: Connection) -> None:
        """Pass on an authenticated connection."""
        self.accepted(peer)

    def report(self, sentence: str) -> None:
        """Pass on a sentence of the listener's."""
        self.say(sentence)


def _serve(
    spec: JobSpec,
    world: JobSpec,
    loop: EventLoop[Event],
    door: _Door,
    terminal: Terminal,
    signals: Signals,
    claims: Arbiter,
    elected: Elected,
    outcome: _Outcome,
    token: bytes,
    *,
    takes_over: bool,
    ranks_run: bool,
) -> int:
    """Run the job as its elected head. Return the exit code.

    Raises:
        Unusable: the job cannot be taken up.
        Deposed: another head has taken over.
    """

    def make_pages(directory: Path) -> ClusterPages:
        pages = ClusterPages(directory, world.launch.nproc)
        pages.delay_seconds = delay_seconds(beat_seconds(spec.nodes.most, spec.nodes.timeout))
        pages.reading(NONE)
        pages.decide(Resume.FRESH, NONE, NONE)  # forgets a killed head's decision: the nodes report what memory holds
        return pages

    try:
        life = SignOfLife(claims, elected.sign)
    except (OSError, RuntimeError) as error:  # no descriptor, or no thread
        why = error.strerror if isinstance(error, OSError) else error
        raise Unusable(f"cannot be the head: its sign of life cannot be kept: {why}") from error
    loop.register(life.fd, life.raise_deposed)
    before = elected.before
    elsewhere = before is not None and before.machine != elected.sign.machine
    gone = (before.pid, before.started) if before is not None and elsewhere else None
    helpers = HelperProcesses()
    name = secrets.token_hex(8)
    adopted = plan.read(spec.run_dir)
    store = None
    if world.saving.checkpoint_store is not None:
        store = StoreOpening(
            spec=world,
            helpers=helpers,
            interrupted=signals.fd,
            life=name,
            adopted="" if adopted is None else life_of(adopted.lineage),
            ranks_run=ranks_run,
            meeting=(elected.sign.address, elected.sign.port),
        )
    load_fetch = None
    if world.saving.load_address is not None and not ranks_run:
        load_fetch = LoadFetch(world, helpers, signals.fd)
    try:
        workspace = Workspace(
            world,
            lambda line: terminal.say(messages.PREFIX + line),
            make_pages,
            gone,
            takes_over=takes_over,
            store=store,
            load_fetch=load_fetch,
        )
    except Unusable as error:
        # An empty machine at the endpoint: its job may be led elsewhere, and keep the checkpoint store.
        is_kept = isinstance(error.__cause__, StoreHasOwnerError)
        if ranks_run or not is_kept or not arbiter.may_vote(spec):
            raise
        if not _is_led_elsewhere(loop=loop, door=door, outcome=outcome, signals=signals, terminal=terminal):
            raise
        return EXIT_SAVED
    world = workspace.spec
    notifier = NotifierLink(helpers, world, dict(os.environ))
    reporter = Reporter(world, workspace.journal, workspace.files, notifier, terminal)
    reached = engine_main.report_start(world, workspace, reporter)
    job = HeadJob(
        spec=spec,
        world=world,
        workspace=workspace,
        reporter=reporter,
        signals=signals,
        helpers=helpers,
        loop=loop,
        random=random.random,
        reached=reached,
        life=life,
        store=store,
        name=name,
        may_be_beside=elsewhere,
    )
    if warning := messages.descriptor_warning(descriptor_limit.limit(), spec.nodes.most):
        reporter.complain(warning)
    door.accepted = job.cluster.arrivals.accepted
    door.say = reporter.say
    outcome.report(os.getpid())
    watch = None
    if arbiter.may_vote(spec):
        watch = EndpointWatch(loop=loop, clock=time.monotonic, nodes=spec.nodes, token=token, life=life)
    outlets = Outlets(helpers, world, loop, reporter.report, time.monotonic)
    try:
        code = job.run()
    except Deposed:
        reporter.write_all()
        remove_memory(workspace.memory_dir)  # holds only mirrors; the run dir and its locks are the next head's
        raise
    closing = Closing(reporter.complain)
    if watch is not None:
        closing("end the look for a head at the endpoint", watch.close)
    is_written = reporter.write_all()  # now, because the exporter reads in the journal how the job has ended
    closing("end the exporter of metrics", outlets.close)
    engine_main.report_unsaved(closing, reporter, job.supervisor.unsaved() or job.kept())
    state = job.supervisor.state
    is_written = is_written and reporter.write_all()
    storage_answers = job.storage_answers and is_written
    engine_main.write_page(
        closing, reporter, lambda: page_at_end(helpers, world, state, storage_answers=storage_answers)
    )
    closing("write down that the job has ended", lambda: life.close(code))
    closing(f"remove {workspace.memory_dir}, in which nothing is needed any more", workspace.forget_memory)
    if not job.kept() and not job.supervisor.final_save.error and job.supervisor.internal_error is None:
        engine_main.note_end(closing, workspace, state, storage_answers=storage_answers)
    engine_main.leave(terminal, workspace, storage_answers=job.storage_answers, is_written=is_written)
    return code
