"""A process from which an agent has heads started, and the sign of life of the running one read.

It is forked before the agent has threads. What it does may wait for storage; the agent never waits for it but at its
start.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ftlaunch.channel import arbiter
from ftlaunch.channel.arbiter import Arbiter
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch_contract.files.kernel_files import open_end

START, SUCCEED, TAKE_OVER, LOOK = b"+", b"s", b"t", b"?"
"""a head; another one where the one that was met has listened, on this machine; one for a head that is gone, wherever
it was; and a look at the newest sign. Only START begins a job: the others come from nodes that had a head."""
UNUSABLE = -1
"""told instead of a head's pid: it has said on the terminal why no head can be started with these settings"""
_PATIENCE = 10.0  # seconds that an agent waits for its head to have said its last words
_MOST = 1 << 16
_DEAF = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2

BeHead = Callable[[int, bytes, int], None]
"""Is the head, in a process of its own, and never returns. Given: a pipe that is told its pid once it can be the head,
or UNUSABLE, or is closed; the order; and the term of the last sign that the agent was told of, or 0."""


class HeadStarter:
    """Heads are nobody's children: no agent takes them for something that a rank has left behind. They outlive it."""

    def __init__(self, spec: JobSpec, be_head: BeHead) -> None:
        """Must be made while this process has no threads, and before it adopts orphans."""
        orders, self._orders = os.pipe()
        self.fd, answers = os.pipe()
        """is readable when `lines` has something"""
        child = os.fork()
        if not child:
            os.close(self._orders)
            os.close(self.fd)
            os.setsid()  # a signal to the agent's group is not meant for the head
            if not os.fork():
                _obey(arbiter.of(spec), be_head, orders, answers)
            os._exit(0)
        os.close(orders)
        os.close(answers)
        os.waitpid(child, 0)
        os.set_blocking(self.fd, False)
        self._told = b""
        self.gone = False
        """the process was killed: this node starts no head any more"""
        self.unusable = False
        """no head can be started with these settings, which was said"""

    def start(self) -> int:
        """Start a head where the job's place is this machine's, and none lives; returns its pidfd, or -1."""
        self.order(START)
        while not self.gone:
            select.select([self.fd], [], [])
            for line in self.lines():
                pid = int(line["head"])
                self.unusable = pid == UNUSABLE
                return open_end(pid) if pid > 0 else -1
        return -1

    def order(self, order: bytes) -> None:
        """Send an order; `lines` has its answer later."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders, order)

    def lines(self) -> list[dict[str, Any]]:
        """Answers that have come: {"head": pid, 0 or UNUSABLE} or {"sign": fields or nothing}."""
        with contextlib.suppress(BlockingIOError):
            block = os.read(self.fd, _MOST)
            self._told += block
            self.gone = not block
        whole, _, self._told = self._told.rpartition(b"\n")
        return [json.loads(line) for line in whole.splitlines()]

    def close(self) -> None:
        """Start no more."""
        os.close(self._orders)
        os.close(self.fd)


def _obey(claims: Arbiter, be_head: BeHead, orders: int, answers: int) -> None:
    for signum in _DEAF:  # a scheduler signals all processes of a job: this one ends with its agent
        signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a head has ended
    term = 0
    while order := os.read(orders, 1):
        if order == LOOK:
            sign = claims.read()
            term = 0 if sign is None else sign.term
            answer: dict[str, object] = {"sign": {} if sign is None else asdict(sign)}
        else:
            answer = {"head": _fork_head(be_head, order, term, (orders, answers))}
        with contextlib.suppress(BrokenPipeError):
            os.write(answers, json.dumps(answer).encode() + b"\n")
    os._exit(0)


def _fork_head(be_head: BeHead, order: bytes, term: int, close: tuple[int, ...]) -> int:
    """Its pid, or 0 where it is no head, or UNUSABLE. One that is no head yet ends with the agent."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        for fd in (read, *close):
            os.close(fd)
        for signum in (signal.SIGCHLD, *_DEAF):
            signal.signal(signum, signal.SIG_DFL)
        be_head(write, order, term)
    os.close(write)
    either = select.poll()
    either.register(read, select.POLLIN)
    either.register(close[0], 0)  # only whether the agent has closed its end
    if not any(fd == read for fd, _ in either.poll()):
        os.kill(child, signal.SIGKILL)
    with os.fdopen(read, "rb") as told:
        return int(told.readline() or b"0")


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
