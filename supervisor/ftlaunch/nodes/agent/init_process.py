"""The first process of a container: orphans become its children, and its end is the end of all others.

An agent ends processes that it does not know and that have become its children. The process that starts heads, and a
head, are to outlive what has started them: in a container they would become children of its first process. So that one
only waits, and the agent is a child of it.
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
    """Go on in a child, if this is the first process of its pid namespace; that one ends as the child does."""
    if os.getpid() != 1:
        return
    # to a first process the kernel gives no signal that it has no handler for; one that it blocks waits
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if child:
        _wait_for(child, signals)
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)


def _wait_for(child: int, signals: Iterable[int]) -> None:
    """Pass on signals, take the exit status of orphans, and end with the child's exit code.

    signals: those that stay blocked.
    """

    def pass_on(signum: int, _: FrameType | None) -> None:
        os.kill(child, signum)

    for signum in _PASSED_ON:
        signal.signal(signum, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
