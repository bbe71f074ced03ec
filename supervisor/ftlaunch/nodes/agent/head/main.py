"""The head of a job of several nodes: the engine of one machine, whose ranks are on other ones; a process of its own.

The first agent at the endpoint starts it, or the agent that takes the place of a head that is gone. It outlives that
agent: its ranks are not the head's business.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ftlaunch.engine import main as engine_main
from ftlaunch.engine.closing import Closing
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.engine.outlet_watch import Outlets
from ftlaunch.engine.workspace import Unusable, Workspace
from ftlaunch.memory.directory import remove_memory
from ftlaunch.nodes.agent.head import election
from ftlaunch.nodes.agent.head.election import Elected, Order
from ftlaunch.nodes.agent.head.head_job import HeadJob
from ftlaunch.nodes.agent.head.sign_of_life import Deposed, SignOfLife
from ftlaunch.nodes.agent.head.starter import START, TAKE_OVER, UNUSABLE
from ftlaunch.nodes.channel import arbiter
from ftlaunch.nodes.channel.arbiter import Arbiter
from ftlaunch.nodes.channel.connection import Connection
from ftlaunch.nodes.channel.listener import Listener
from ftlaunch.nodes.cluster import messages as cluster_messages
from ftlaunch.nodes.cluster.beat_pace import beat_seconds, delay_seconds, gather_seconds
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
"""that are made before Python looks for unused ones that name each other, of which there are hardly any here. With
16,384 ranks each look makes so many objects for a moment that Python would look through all there are, 70 ms long."""


def be_head(spec: JobSpec, token: bytes, write: int, order: Order) -> None:
    """Be the head, and never return. See starter.BeHead."""
    code, told = EXIT_BUG, _Told(write)
    try:
        code = _run(spec, token, told, order)
    except Unusable as error:
        sys.stderr.write(f"{messages.PREFIX}{error}\n")
        sys.stderr.flush()
        told.tell(UNUSABLE)
        code = EXIT_USAGE
    except Deposed as error:
        sys.stderr.write(f"{messages.PREFIX}{error}\n")
        code = EXIT_SAVED
    except Exception:  # noqa: BLE001 - the last resort: whatever gets here is a bug, and is told so
        sys.stderr.write(f"{messages.PREFIX}a bug of ftlaunch's own, in the head of the job; please report it:\n")
        traceback.print_exc()
    finally:
        leave(code)


class _Told:
    """What has the head started is told once what became of it; its end without a word is told by the closed pipe."""

    def __init__(self, write: int) -> None:
        self._write: int | None = write

    def tell(self, number: int) -> None:
        """The head's pid, or UNUSABLE."""
        if self._write is not None:
            with contextlib.suppress(BrokenPipeError):  # its agent was killed meanwhile
                os.write(self._write, b"%d\n" % number)
            os.close(self._write)
            self._write = None


def _run(spec: JobSpec, token: bytes, told: _Told, order: Order) -> int:
    """The head. told: whether it can be."""
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    loop = EventLoop[Event](time.monotonic, gather_seconds=gather_seconds(spec.nodes.most))
    door, claims = _Door(), arbiter.of(spec)

    def listen(address: str, port: int) -> Listener:
        return Listener(
            loop,
            time.monotonic,
            address,
            port,
            token,
            door.accept,
            door.tell,
            version=cluster_messages.VERSION,
            silence_seconds=spec.nodes.timeout,
        )

    try:
        elected = election.stand(spec.nodes, claims, listen, order)
    except OSError as error:
        raise Unusable(f"cannot be the head: {error.filename or claims.where}: {error.strerror}") from error
    if elected is None:
        return 0
    if order.what == TAKE_OVER:  # its agent looks for the head at once, and asks whatever has started it
        told.tell(os.getpid())
    processes.become_subreaper()
    descriptor_limit.raise_limit()
    # a head that takes a dead one's place goes on with the job, also where the job was begun with --fresh
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
            return _serve(spec, world, loop, door, terminal, signals, claims, elected, told, takes_over=takes_over)
    finally:
        elected.listener.close()
        loop.close()
        terminal.close()


class _Door:
    """What is done with peers and sentences of the listener: set before the loop runs, and nothing comes earlier."""

    accepted: Callable[[Connection], None]
    say: Callable[[str], None]

    def accept(self, peer: Connection) -> None:
        """A peer has come."""
        self.accepted(peer)

    def tell(self, sentence: str) -> None:
        """The listener has something to say."""
        self.say(sentence)


def _serve(
    spec: JobSpec, world: JobSpec, loop: EventLoop[Event], door: _Door, terminal: Terminal, signals: Signals,
    claims: Arbiter, elected: Elected, told: _Told, *, takes_over: bool,
) -> int:  # fmt: skip
    def make_pages(directory: Path) -> ClusterPages:
        pages = ClusterPages(directory, world.launch.nproc)
        pages.delay_seconds = delay_seconds(beat_seconds(spec.nodes.most, spec.nodes.timeout))
        pages.reading(NONE)
        pages.decide(Resume.FRESH, NONE, NONE)  # a killed head's: what memory holds, the nodes say
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
    workspace = Workspace(
        world, lambda line: terminal.say(messages.PREFIX + line), make_pages, gone, takes_over=takes_over
    )
    world = workspace.spec
    helpers = HelperProcesses()
    notifier = NotifierLink(helpers, world, dict(os.environ))
    reporter = Reporter(world, workspace.journal, workspace.files, notifier, terminal)
    reached = engine_main.tell_of_start(world, workspace, reporter)
    job = HeadJob(
        spec, world, workspace, reporter, signals, helpers, loop, random.random, reached, life, may_be_beside=elsewhere
    )
    if few := messages.few_descriptors(descriptor_limit.limit(), spec.nodes.most):
        reporter.complain(few)
    door.accepted, door.say = job.cluster.arrivals.accepted, reporter.say
    told.tell(os.getpid())
    outlets = Outlets(helpers, world, loop, reporter.tell, time.monotonic)
    try:
        code = job.run()
    except Deposed:
        reporter.write_all()
        remove_memory(workspace.memory_dir)  # only mirrors lie there; run dir and locks are the next head's
        raise
    closing = Closing(reporter.complain)
    reporter.tell(job.supervisor.ended(code))
    is_written = reporter.write_all()  # the exporter reads in the journal how the job has ended
    closing("end the exporter of metrics", outlets.close)
    engine_main.tell_last(closing, reporter, job.supervisor.unsaved() or job.kept())
    state, is_written = job.supervisor.state, is_written and reporter.write_all()
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
