"""A helper of the fork server: a child of it that waits for one order, forks the ranks of that order, and ends.

Standard library only; loaded as a file by fork_server.py, in a Python that may lack the hooks.
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

OVER, _MORE = 3, 4  # exit codes: the supervisor is gone; more orders follow than there are helpers
_PR_SET_PDEATHSIG = 1


def fork_ranks(link: socket.socket, relieved: int, pidfd_open: Callable[[int], int]) -> dict[str, Any]:
    """Wait for one order, fork its ranks, end; returns in a rank. The end of the pipe `relieved` ends it, too."""
    wait = select.poll()
    wait.register(link, select.POLLIN)
    wait.register(relieved, select.POLLIN)
    while True:
        heard = {fd for fd, _ in wait.poll()}
        if relieved in heard:  # before an order is taken: whoever takes the place of this process has more to give
            os._exit(0)
        if (received := take_order(link)) is not None:  # else another helper has taken it
            break
    if not received:
        os._exit(OVER)
    os.close(relieved)
    link.close()
    with open(received[0], "rb") as file:  # noqa: PTH123 - a descriptor
        order = json.load(file)
    gate = socket.socket(fileno=received[1])
    me = pidfd_open(os.getpid())
    for number, own in enumerate(order["ranks"]):
        if os.fork() == 0:
            os.setsid()
            _wait_for_end(me)
            die_with(order["supervisor"])
            _use_log(own["log"])
            _pass(gate, number)
            return {"args": order["args"], "env": {**order["env"], **own["env"]}}
    os._exit(_MORE if order["more"] else 0)


def take_order(link: socket.socket) -> list[int] | None:
    """The two descriptors of an order; none where the supervisor is gone, None where nobody says anything. Never waits.

    socket.recv_fds() passes no flags on (https://github.com/python/cpython/issues/107898), and would wait.
    """
    received = array.array("i")
    try:
        message, beside, _, _ = link.recvmsg(16, socket.CMSG_SPACE(2 * received.itemsize), socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    for level, kind, block in beside:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(block)
    return list(received) if message else []


def die_with(parent: int) -> None:
    """SIGKILL at the end of `parent`, whose child this is."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _wait_for_end(pidfd: int) -> None:
    """Wait for the helper's end: from then on this process is the supervisor's child."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()
    os.close(pidfd)


def _use_log(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _pass(gate: socket.socket, number: int) -> None:
    """Tell the supervisor rank and pid, and wait for its SIGCONT; it may have given up waiting."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    try:
        gate.send(f"{number} {os.getpid()}".encode())
    except OSError:
        os._exit(1)
    gate.close()
    signal.sigwait({signal.SIGCONT})
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
