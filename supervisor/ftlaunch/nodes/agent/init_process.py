"""Keeps an agent from being the first process of a container.

Orphans become children of a container's first process, and an agent kills children that it does not know. But the
starter and the heads must outlive their parents. Therefore the first process only waits, and the agent is its child.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from types import FrameType

_PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def step_behind_init() -> None:
    """Go on in a child process if this is the first process of its pid namespace.

    The first process never returns; it ends with the child's exit code.
    """
    if os.getpid() != 1:
        return
    # The kernel drops signals to a first process that has no handler for them. A blocked signal waits instead.
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if child:
        _wait_for(child, signals)
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)


def _wait_for(child: int, signals: Iterable[int]) -> None:
    """Pass on signals, reap orphans, and end with the child's exit code. Never returns.

    Args:
        child: the pid to which signals are passed on.
        signals: the signals that were blocked before, and stay blocked.
    """

    def pass_on(signum: int, _: FrameType | None) -> None:
        os.kill(child, signum)

    for signum in _PASSED_ON:
        signal.signal(signum, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None  # only WNOHANG returns None
        if ended.si_pid == child:
            # Once the child is reaped, its pid is nobody's, or another process's: no signal is passed on any more.
            signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        _, status = os.waitpid(ended.si_pid, 0)
        if ended.si_pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
