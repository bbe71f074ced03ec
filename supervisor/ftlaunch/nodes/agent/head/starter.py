"""The starter: a process that forks heads for an agent, and reads the sign of life of the running head.

The agent forks the starter before it has threads. The starter's calls may wait for storage; the agent waits for the
starter only once, at its own start. If the starter is killed, a thread of the agent reads the signs instead, and heads
are started by other nodes.

`HeadStarter` is the agent's side. The private functions below run in the starter's process or in that thread.
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
from ftlaunch.system.answer_line import AnswerReader
from ftlaunch.system.descriptors import is_readable
from ftlaunch_contract.files.kernel_files import open_end

START = b"+"
"""order: start a head for a job that may not have begun; the other orders come from nodes that had a head"""
SUCCEED = b"s"
"""order: start a head in place of one that listened on this machine"""
TAKE_OVER = b"t"
"""order: start a head in place of one that is gone, on whichever machine it was"""
READ_SIGN = b"?"
"""order: read the newest sign"""
UNUSABLE = -1
"""answered instead of a head's pid after the terminal was told why no head can run with these settings"""
_LAST_WORDS_SECONDS = 10.0  # that an agent waits for its head to end
_IGNORED_SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2

BeHead = Callable[[int, bytes, int], None]
"""Runs the head in the process that calls it, and never returns. Arguments: the write end of a pipe that is told the
head's pid once the head is elected, or UNUSABLE, or is closed; the order; and the term of the last sign that was read,
or 0."""


class HeadStarter:
    """An agent's connection to its starter.

    Heads are not the agent's children: they outlive the agent, and no agent takes a head for a process that a rank has
    left behind.
    """

    def __init__(self, spec: JobSpec, be_head: BeHead) -> None:
        """Fork the starter, while this process has no threads and before it adopts orphans.

        Args:
            spec: the job.
            be_head: runs a head.

        Raises:
            OSError: the process or a pipe cannot be made.
        """
        self._arbiter = arbiter.place_of(spec)
        orders, self._orders = os.pipe()
        self.fd, answers = os.pipe()
        """readable when `read_answers` has answers; another descriptor after `replace_by_thread`"""
        child = os.fork()
        if not child:
            os.close(self._orders)
            os.close(self.fd)
            os.setsid()  # a signal to the agent's group is not meant for the head
            if not os.fork():
                _be_starter(claims=arbiter.of(spec), be_head=be_head, orders=orders, answers=answers)
            os._exit(0)
        os.close(orders)
        os.close(answers)
        os.waitpid(child, 0)
        self._answers = AnswerReader(self.fd)
        self.gone = False
        """whether the starter was killed, so that `replace_by_thread` is due"""
        self.unusable = False
        """whether no head can run with these settings, which the terminal was told"""
        self._head = -1  # pidfd of the newest head that was started here

    @property
    def has_started(self) -> bool:
        """Whether a head was started from here and has not been waited for."""
        return self._head >= 0

    def start(self) -> None:
        """Start the job's head if it belongs on this machine and none lives. Wait for the outcome."""
        self.send_order(START)
        while not self.gone:
            is_readable(self.fd, None)
            if answers := self.read_answers():
                self.unusable = answers[0]["head"] == UNUSABLE
                return

    def send_order(self, order: bytes) -> None:
        """Send one of START, SUCCEED, TAKE_OVER and READ_SIGN; `read_answers` returns the answer later."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders, order)

    def read_answers(self) -> list[dict[str, Any]]:
        """Return the answers that have arrived: {"head": pid, 0 or UNUSABLE} or {"sign": its fields, or empty}."""
        answers = self._answers.read()
        self.gone = answers is None
        for answer in answers or ():
            if answer.get("head", 0) > 0:
                self._forget_head()
                with contextlib.suppress(OSError):  # the head has ended already, or its end cannot be waited for
                    self._head = open_end(answer["head"])
        return answers or []

    def replace_by_thread(self) -> None:
        """Replace the killed starter by a thread that reads signs; this node starts no head any more.

        Orders under way stay unanswered, and `fd` is another descriptor afterwards.

        Raises:
            OSError: no pipe can be made. Nothing has changed, and the call can be repeated.
            RuntimeError: no thread can be started. Nothing has changed, and the call can be repeated.
        """
        with contextlib.ExitStack() as made:
            orders, own_orders = _pipe(made)
            fd, answers = _pipe(made)
            arguments = arbiter.at(self._arbiter), lambda order, term: 0, orders, answers
            threading.Thread(target=_obey, args=arguments, name="signs", daemon=True).start()
            made.pop_all()
        self.close()
        self._orders = own_orders
        self.fd = fd
        self._answers = AnswerReader(fd)
        self.gone = False

    def close(self) -> None:
        """End the starter; heads that it has started go on."""
        os.close(self._orders)
        os.close(self.fd)

    def dismiss_head(self) -> None:
        """End the head that was started from here, if any, because this node cannot take part."""
        if self.has_started:
            with contextlib.suppress(ProcessLookupError):  # the head has ended by itself
                signal.pidfd_send_signal(self._head, signal.SIGTERM)
        self.wait_for_head()

    def wait_for_head(self) -> None:
        """Wait until the newest head that was started from here has ended.

        A head tells the agents that the job is over before it writes its last files, and a scheduler may kill the head
        as soon as the last agent has ended.
        """
        if self.has_started:
            is_readable(self._head, _LAST_WORDS_SECONDS)
            self._forget_head()

    def _forget_head(self) -> None:
        if self.has_started:
            os.close(self._head)
            self._head = -1


def _pipe(made: contextlib.ExitStack) -> tuple[int, int]:
    """Return the read and write ends of a pipe that `made` closes."""
    ends = os.pipe()
    for end in ends:
        made.callback(os.close, end)
    return ends


def _be_starter(claims: Arbiter, be_head: BeHead, orders: int, answers: int) -> None:
    """Obey orders until the agent ends, then end this process."""
    for (
        signum
    ) in _IGNORED_SIGNALS:  # a scheduler signals all processes of a job, but the starter must end only with its agent
        signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a head has ended

    def start_head(order: bytes, term: int) -> int:
        return _fork_head(be_head=be_head, order=order, term=term, close=(orders, answers))

    _obey(claims=claims, start_head=start_head, orders=orders, answers=answers)
    os._exit(0)


def _obey(claims: Arbiter, start_head: Callable[[bytes, int], int], orders: int, answers: int) -> None:
    """Answer orders until the agent's end of `orders` is closed.

    Args:
        claims: where the signs of heads are read.
        start_head: starts a head for an order and a term; returns its pid, 0 or UNUSABLE.
        orders: the descriptor of which orders are read, one byte each.
        answers: the descriptor to which answers are written, one line of JSON each.
    """
    term = 0
    while order := os.read(orders, 1):
        if order == READ_SIGN:
            sign = claims.read()
            term = 0 if sign is None else sign.term
            answer: dict[str, object] = {"sign": {} if sign is None else asdict(sign)}
        else:
            answer = {"head": start_head(order, term)}
        with contextlib.suppress(BrokenPipeError):
            os.write(answers, json.dumps(answer).encode() + b"\n")


def _fork_head(be_head: BeHead, order: bytes, term: int, close: tuple[int, ...]) -> int:
    """Fork a process that stands for election, and wait for the outcome.

    The process is killed if the agent ends before the election is decided.

    Args:
        be_head: runs the head.
        order: START, SUCCEED or TAKE_OVER.
        term: the term of the last sign that was read, or 0.
        close: descriptors of the starter that the head must not keep; the first one is that of the orders.

    Returns:
        The head's pid, 0 if the process is not the head, or UNUSABLE.
    """
    read, write = os.pipe()
    child = os.fork()
    if not child:
        for fd in (read, *close):
            os.close(fd)
        for signum in (signal.SIGCHLD, *_IGNORED_SIGNALS):
            signal.signal(signum, signal.SIG_DFL)
        be_head(write, order, term)
    os.close(write)
    either = select.poll()
    either.register(read, select.POLLIN)
    either.register(close[0], 0)  # only whether the agent has closed its end
    if not any(fd == read for fd, _ in either.poll()):
        os.kill(child, signal.SIGKILL)
    with os.fdopen(read, "rb") as outcome:
        return int(outcome.readline() or b"0")
