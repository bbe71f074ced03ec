"""Forks the ranks of one order, as a helper of the fork server.

A helper is a child of the fork server. It waits for one order, forks the ranks of this order, and ends, so that the
supervisor inherits the ranks. Standard library only; loaded as a file by fork_server.py, in a Python that may lack the
hooks.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import Any

OVER = 3  # exit code: the supervisor is gone
_MORE = 4  # exit code: more orders follow than there are helpers
_PR_SET_PDEATHSIG = 1


def fork_ranks(link: socket.socket, relieved: int, pidfd_open: Callable[[int], int]) -> dict[str, Any]:
    """Wait for one order, fork its ranks, and end this process. Return only in a forked rank.

    Args:
        link: the socket to the supervisor, from which the order comes.
        relieved: the reading end of a pipe. When the pipe is closed before an order has come, this process ends.
        pidfd_open: opens a pidfd of a process.

    Returns:
        The rank's order: `args`, the arguments of the script, and `env`, the whole environment.
    """
    poll = select.poll()
    poll.register(link, select.POLLIN)
    poll.register(relieved, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if relieved in ready:  # before an order is taken: the helper that replaces this process has more modules loaded
            os._exit(0)
        if (received := receive_order(link)) is not None:  # otherwise another helper has taken the order
            break
    if not received:
        os._exit(OVER)
    os.close(relieved)
    link.close()
    with open(received[0], "rb") as file:  # noqa: PTH123 - a descriptor
        order = json.load(file)
    gate = socket.socket(fileno=received[1])
    helper = pidfd_open(os.getpid())
    for number, rank in enumerate(order["ranks"]):
        if os.fork() == 0:
            os.setsid()
            _wait_for_end(helper)
            die_with(order["supervisor"])
            _redirect_output(rank["log"])
            _pass_gate(gate, number)
            return {"args": order["args"], "env": {**order["env"], **rank["env"]}}
    os._exit(_MORE if order["more"] else 0)


def receive_order(link: socket.socket) -> list[int] | None:
    """Receive an order without waiting.

    socket.recv_fds() would wait, as it does not pass flags on (https://github.com/python/cpython/issues/107898).

    Returns:
        The two descriptors of the order; an empty list if the supervisor is gone; None if there is no message.
    """
    received = array.array("i")
    try:
        message, ancillary, _, _ = link.recvmsg(16, socket.CMSG_SPACE(2 * received.itemsize), socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(data)
    return list(received) if message else []


def die_with(parent: int) -> None:
    """Have the kernel send SIGKILL to this process when its parent ends. Exit at once if `parent` has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _wait_for_end(pidfd: int) -> None:
    """Wait for the end of the helper, after which this process is the supervisor's child."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()
    os.close(pidfd)


def _redirect_output(path: str) -> None:
    """Append standard output and standard error to the file at `path`."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _pass_gate(gate: socket.socket, number: int) -> None:
    """Tell the supervisor this rank's number and pid, and wait for its SIGCONT. Exit if it has given up waiting."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    try:
        gate.send(f"{number} {os.getpid()}".encode())
    except OSError:
        os._exit(1)
    gate.close()
    signal.sigwait({signal.SIGCONT})
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
