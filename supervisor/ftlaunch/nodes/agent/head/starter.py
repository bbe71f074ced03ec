"""A process from which an agent has heads started, and the sign of life of the running one read.

It is forked before the agent has threads. What it does may wait for storage; the agent never waits for it but at its
start. Where the process is killed, a thread of the agent's reads on, and other nodes start the heads.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ftlaunch.nodes.channel import arbiter
from ftlaunch.nodes.channel.arbiter import Arbiter
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.descriptors import is_readable
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
        self._arbiter = arbiter.place_of(spec)
        orders, self._orders = os.pipe()
        self.fd, answers = os.pipe()
        """is readable when `lines` has something"""
        child = os.fork()
        if not child:
            os.close(self._orders)
            os.close(self.fd)
            os.setsid()  # a signal to the agent's group is not meant for the head
            if not os.fork():
                _be_starter(arbiter.of(spec), be_head, orders, answers)
            os._exit(0)
        os.close(orders)
        os.close(answers)
        os.waitpid(child, 0)
        os.set_blocking(self.fd, False)
        self._told = b""
        self.gone = False
        """the process was killed: see `read_on`"""
        self.unusable = False
        """no head can be started with these settings, which was said"""
        self._head = -1  # pidfd of the newest head that was started here

    @property
    def has_started(self) -> bool:
        """Whether a head was started here."""
        return self._head >= 0

    def start(self) -> None:
        """Start a head where the job's place is this machine's, and none lives."""
        self.order(START)
        while not self.gone:
            is_readable(self.fd, None)
            if answers := self.lines():
                self.unusable = answers[0]["head"] == UNUSABLE
                return

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
        answers = [json.loads(line) for line in whole.splitlines()]
        for answer in answers:
            if answer.get("head", 0) > 0:
                self._forget_head()
                with contextlib.suppress(OSError):  # it has ended already, or its end cannot be waited for
                    self._head = open_end(answer["head"])
        return answers

    def read_on(self) -> None:
        """The process was killed: signs are read by a thread from here on, and this node starts no head any more.

        Orders under way are not answered. `fd` is another one. Raises OSError, or RuntimeError where no thread can be
        started: nothing is changed then, and it can be tried again.
        """
        with contextlib.ExitStack() as made:
            (orders, own_orders), (fd, answers) = _pipe(made), _pipe(made)
            os.set_blocking(fd, False)
            told = arbiter.at(self._arbiter), lambda order, term: 0, orders, answers
            threading.Thread(target=_obey, args=told, name="signs", daemon=True).start()
            made.pop_all()
        self.close()
        self._orders, self.fd = own_orders, fd
        self._told, self.gone = b"", False

    def close(self) -> None:
        """Start no more."""
        os.close(self._orders)
        os.close(self.fd)

    def dismiss_head(self) -> None:
        """This node cannot take part: end the head that was started here, if one was."""
        if self.has_started:
            signal.pidfd_send_signal(self._head, signal.SIGTERM)
        self.wait_for_head()

    def wait_for_head(self) -> None:
        """Wait until the newest head that was started here has said its last words.

        It tells the agents of the job's end before it writes it down, and a scheduler may kill it as soon as the last
        agent has ended.
        """
        if self.has_started:
            is_readable(self._head, _PATIENCE)
            self._forget_head()

    def _forget_head(self) -> None:
        if self.has_started:
            os.close(self._head)
            self._head = -1


def _pipe(made: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        made.callback(os.close, end)
    return ends


def _be_starter(claims: Arbiter, be_head: BeHead, orders: int, answers: int) -> None:
    for signum in _DEAF:  # a scheduler signals all processes of a job: this one ends with its agent
        signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a head has ended
    _obey(claims, lambda order, term: _fork_head(be_head, order, term, (orders, answers)), orders, answers)
    os._exit(0)


def _obey(claims: Arbiter, start_head: Callable[[bytes, int], int], orders: int, answers: int) -> None:
    """Until the agent's end of `orders` is closed. start_head: given order and term; returns a pid, 0 or UNUSABLE."""
    term = 0
    while order := os.read(orders, 1):
        if order == LOOK:
            sign = claims.read()
            term = 0 if sign is None else sign.term
            answer: dict[str, object] = {"sign": {} if sign is None else asdict(sign)}
        else:
            answer = {"head": start_head(order, term)}
        with contextlib.suppress(BrokenPipeError):
            os.write(answers, json.dumps(answer).encode() + b"\n")


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
