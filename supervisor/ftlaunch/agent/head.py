"""The head of a job of several nodes: the engine of one machine, whose ranks are on other ones; a process of its own.

The first agent at the endpoint starts it. It outlives that agent: its ranks are not the head's business.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ftlaunch.agent.head_job import HeadJob
from ftlaunch.agent.head_link import is_own
from ftlaunch.channel.connection import Connection
from ftlaunch.channel.listener import Listener
from ftlaunch.cluster import messages as cluster_messages
from ftlaunch.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch.engine import main as engine_main
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.engine.workspace import Unusable, Workspace
from ftlaunch.notify.client import NotifierLink
from ftlaunch.policy.states import Event
from ftlaunch.reporting import messages
from ftlaunch.reporting.reporter import Reporter
from ftlaunch.reporting.terminal import Terminal
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system import processes
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.signals import Signals
from ftlaunch_contract.files.kernel_files import open_end
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import EXIT_BUG, EXIT_USAGE, Resume

_PATIENCE = 10.0  # seconds that an agent waits for its head to have said its last words


class HeadStarter:
    """A process from which heads of a job are forked; it was forked itself before the agent had threads.

    It is nobody's child, as are the heads: no agent takes them for something that a rank has left behind. It ends with
    the agent; a head outlives both.
    """

    def __init__(self, spec: JobSpec, token: bytes) -> None:
        """Must be made while this process has no threads, and before it adopts orphans."""
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        child = os.fork()
        if not child:
            os.close(self._orders)
            os.close(self._answers)
            os.setsid()  # a signal to the agent's group is not meant for the head
            if not os.fork():
                _fork_heads(spec, token, orders, answers)
            os._exit(0)
        os.close(orders)
        os.close(answers)
        os.waitpid(child, 0)

    def start(self) -> int:
        """Start a head where the endpoint is this machine's, and none listens there; returns its pidfd, or -1."""
        self.start_soon()
        told = b""
        while not told.endswith(b"\n") and (block := os.read(self._answers, 64)):
            told += block
        pid = int(told or b"0")
        return open_end(pid) if pid else -1

    def start_soon(self) -> None:
        """The same, without waiting for what becomes of it."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders, b"+")

    def close(self) -> None:
        """Start no more."""
        os.close(self._orders)
        os.close(self._answers)


def _fork_heads(spec: JobSpec, token: bytes, orders: int, answers: int) -> None:
    """Fork a head for each order; the answer is its pid, or 0 where it does not listen."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a head has ended
    while os.read(orders, 1):
        read, write = os.pipe()
        if not os.fork():
            os.close(read)
            os.close(orders)
            os.close(answers)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _be_head(spec, token, write)
        os.close(write)
        with os.fdopen(read, "rb") as told, contextlib.suppress(BrokenPipeError):
            os.write(answers, told.readline() or b"0\n")
    os._exit(0)


def _be_head(spec: JobSpec, token: bytes, write: int) -> None:
    code = EXIT_BUG
    try:
        code = _run(spec, token, write)
    except Unusable as error:
        sys.stderr.write(f"{messages.PREFIX}{error}\n")
        code = EXIT_USAGE
    except Exception:  # noqa: BLE001 - the last resort: whatever gets here is a bug, and is told so
        sys.stderr.write(f"{messages.PREFIX}a bug of ftlaunch's own, in the head of the job; please report it:\n")
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def dismiss(head: int) -> None:
    """This node cannot take part: end the head that it has started. head: its pidfd, or -1."""
    if head >= 0:
        signal.pidfd_send_signal(head, signal.SIGTERM)
        wait(head)


def wait(head: int) -> None:
    """Wait until the head has said its last words. head: its pidfd, or -1."""
    if head >= 0:
        select.select([head], [], [], _PATIENCE)
        os.close(head)


def _run(spec: JobSpec, token: bytes, write: int) -> int:
    """The head. write: is told whether it listens."""
    loop = EventLoop[Event](time.monotonic)
    door = _Door()
    address = _own_address(spec)
    try:
        if address is None:
            return 0
        listener = Listener(
            loop, time.monotonic, address, spec.nodes.port, token, door.accept, door.tell,
            version=cluster_messages.VERSION,
        )  # fmt: skip
    except OSError:  # another one's address, or another head listens
        return 0
    os.write(write, b"%d\n" % os.getpid())
    os.close(write)
    processes.become_subreaper()
    world = replace(spec, launch=replace(spec.launch, nproc=spec.nodes.most * spec.launch.nproc))
    terminal = Terminal()
    try:
        with Signals(spec.launch.stop_signals) as signals:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return _serve(spec, world, loop, door, terminal, signals)
    finally:
        listener.close()
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


def _own_address(spec: JobSpec) -> str | None:
    """The endpoint's address, where it is this machine's."""
    try:
        found = socket.getaddrinfo(spec.nodes.address, spec.nodes.port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError:
        return None
    return str(found) if is_own(str(found)) else None


def _serve(
    spec: JobSpec, world: JobSpec, loop: EventLoop[Event], door: _Door, terminal: Terminal, signals: Signals
) -> int:  # fmt: skip
    def make_pages(directory: Path) -> ClusterPages:
        pages = ClusterPages(directory, world.launch.nproc)
        pages.reading(NONE)
        pages.decide(Resume.FRESH, NONE, NONE)  # a killed head's: what memory holds, the nodes say
        return pages

    workspace = Workspace(world, lambda line: terminal.say(messages.PREFIX + line), make_pages)
    helpers = HelperProcesses()
    reporter = Reporter(world, workspace.journal, NotifierLink(helpers, world, dict(os.environ)), terminal)
    reached = engine_main.tell_of_start(world, workspace, reporter)
    job = HeadJob(spec, world, workspace, reporter, signals, helpers, loop, random.random, reached)
    door.accepted, door.say = job.cluster.arrivals.accepted, reporter.say
    code = job.run()
    reporter.tell(job.supervisor.ended(code))
    if unsaved := job.supervisor.unsaved() or job.kept():
        reporter.say(unsaved)
    reporter.farewell()
    workspace.leave(keep_memory=False, storage_answers=job.storage_answers)
    return code
