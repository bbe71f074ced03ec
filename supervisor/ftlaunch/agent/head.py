"""The head of a job of several nodes: the engine of one machine, whose ranks are on other ones; a process of its own.

The first agent at the endpoint starts it. It outlives that agent: its ranks are not the head's business.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

from ftlaunch.agent.head_job import HeadJob
from ftlaunch.channel.connection import Connection
from ftlaunch.channel.listener import Listener
from ftlaunch.cluster import messages as cluster_messages
from ftlaunch.cluster.cluster_pages import ClusterPages
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

_PATIENCE = 10.0  # seconds that an agent waits for its head to have said its last words


def start(spec: JobSpec, token: bytes) -> int:
    """Start the head where the endpoint is this machine's, and no head listens there; returns its pid, or 0.

    Must be called while this process has no threads. Returns once the head listens, or it is known that none does.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        listens = os.read(read, 1) == b"1"
        os.close(read)
        if not listens:
            os.waitpid(pid, 0)
        return pid if listens else 0
    os.close(read)
    os.setsid()  # a signal to the agent's group is not meant for the head
    code = 1
    try:
        code = _run(spec, token, write)
    except Unusable as error:
        sys.stderr.write(f"{messages.PREFIX}{error}\n")
        code = 2
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, code: int) -> int:
    """Wait until the head has said its last words; returns `code`, or the head's own where it could not start."""
    end = time.monotonic() + _PATIENCE
    pidfd = os.pidfd_open(pid)
    try:
        import select  # noqa: PLC0415

        select.select([pidfd], [], [], max(0.0, end - time.monotonic()))
    finally:
        os.close(pidfd)
    return code


def _run(spec: JobSpec, token: bytes, write: int) -> int:
    """The head. write: is told whether it listens."""
    loop = EventLoop[Event](time.monotonic)
    waiting: list[Connection] = []
    said: list[str] = []
    address = _own_address(spec)
    try:
        if address is None:
            return 0
        listener = Listener(
            loop, time.monotonic, address, spec.nodes.port, token, waiting.append, said.append,
            version=cluster_messages.VERSION,
        )  # fmt: skip
    except OSError:  # another one's address, or another head listens
        return 0
    os.write(write, b"1")
    os.close(write)
    processes.become_subreaper()
    world = replace(spec, launch=replace(spec.launch, nproc=spec.nodes.most * spec.launch.nproc))
    terminal = Terminal()
    try:
        with Signals(spec.launch.stop_signals) as signals:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return _serve(spec, world, loop, listener, waiting, terminal, signals)
    finally:
        terminal.close()


def _own_address(spec: JobSpec) -> str | None:
    """The endpoint's address, where it is this machine's."""
    try:
        found = socket.getaddrinfo(spec.nodes.address, spec.nodes.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(found[0], socket.SOCK_STREAM) as probe:
            probe.bind((found[4][0], 0))
        return str(found[4][0])
    except OSError:
        return None


def _serve(
    spec: JobSpec, world: JobSpec, loop: EventLoop[Event], listener: Listener, waiting: list[Connection],
    terminal: Terminal, signals: Signals,
) -> int:  # fmt: skip
    def make_pages(directory: Path) -> ClusterPages:
        pages = ClusterPages(directory, world.launch.nproc)
        pages.forget(0, len(pages))
        return pages

    workspace = Workspace(world, lambda line: terminal.say(messages.PREFIX + line), make_pages)
    helpers = HelperProcesses()
    reporter = Reporter(world, workspace.journal, NotifierLink(helpers, world, dict(os.environ)), terminal)
    engine_main.tell_of_start(world, workspace, reporter)
    job = HeadJob(spec, world, workspace, reporter, signals, helpers, loop, random.random)
    listener.hand_over(job.cluster.accepted)
    for connection in waiting:
        job.cluster.accepted(connection)
    code = job.run()
    listener.close()
    reporter.tell(job.supervisor.ended(code))
    if unsaved := job.supervisor.unsaved():
        reporter.say(unsaved)
    reporter.farewell()
    workspace.leave(keep_memory=False, storage_answers=job.storage_answers)
    return code
