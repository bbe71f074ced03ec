"""Asks again and again whether this machine will be taken away: whether a file is there, or a command ends with 0.

A process asks, also for a file: on a file system that does not answer it hangs, and the loop does not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from ftlaunch.common.signal_names import signal_name
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.spec.checks import names_file
from ftlaunch.spec.errors import shown
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.helper_process import DEVNULL, HelperProcess, HelperProcesses
from ftlaunch_contract.files.kernel_files import open_end

_DEADLINE = 10.0  # seconds that one answer may take
_YES, _NO = 0, 1  # exit codes; any other one is no answer


class PreemptionWatch:
    """Asks whether this machine is about to be taken away, until the answer is yes."""

    def __init__(
        self,
        loop: EventLoop[Any],
        helpers: HelperProcesses,
        when: str,
        every: float,
        on_notice: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        """on_notice: told once why the machine will be taken away. Main thread only; the first look is made at once."""
        self._loop, self._helpers, self._when, self._every = loop, helpers, when, every
        self._on_notice, self._say = on_notice, say
        self._told: set[str] = set()
        self._asking: tuple[HelperProcess, int] | None = None  # and what becomes readable at its end
        loop.call_at(time.monotonic(), self, self._ask)

    def _ask(self) -> None:
        test = ["test", "-e", self._when] if names_file(self._when) else ["/bin/sh", "-c", self._when]
        try:
            process = self._helpers.start(test, stderr=DEVNULL)
            end = open_end(process.pid)
        except OSError as error:
            self._complain(f"it cannot be started: {str(error.strerror).lower()}")
            self._ask_later()
            return
        self._asking = process, end
        self._loop.register(end, self._on_end)
        self._loop.call_at(time.monotonic() + _DEADLINE, self, self._on_deadline)

    def _ask_later(self) -> None:
        self._loop.call_at(time.monotonic() + self._every, self, self._ask)

    def _on_deadline(self) -> None:
        """It is asked again once its end is seen: a process that SIGKILL cannot end yet is the only one."""
        self._complain(f"it gives no answer within {_DEADLINE:g} s")
        self._kill()

    def _on_end(self) -> None:
        code = self._forget()
        if code == _YES:
            self._on_notice(f"preemption notice: {self._sentence()}")
            return
        if code > _NO:
            self._complain(f"it ends with exit code {code}, where 0 is yes and 1 is no")
        elif code < 0 and -code != signal.SIGKILL:
            self._complain(f"it was killed by {signal_name(-code)}")
        self._ask_later()

    def _sentence(self) -> str:
        found = "is there" if names_file(self._when) else "says that this machine will be taken away"
        return f"{shown(self._when)} {found}"

    def _complain(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            self._say(f"cannot tell whether this machine will be taken away (`{shown(self._when)}`): {why}; asking on")

    def _forget(self) -> int:
        """The exit code of the process that has ended."""
        assert self._asking is not None
        (process, end), self._asking = self._asking, None
        self._loop.cancel(self)
        self._loop.unregister(end)
        os.close(end)
        return process.wait()

    def _kill(self) -> None:
        assert self._asking is not None
        process = self._asking[0]
        if process.returncode is None:  # else its exit status was taken, and the number of its group may be another's
            with contextlib.suppress(ProcessLookupError):  # its group: what it has started, too
                os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ask no more."""
        self._loop.cancel(self)
        if self._asking is not None:
            self._kill()
            self._loop.unregister(self._asking[1])
            os.close(self._asking[1])
            self._asking = None


def watch_for(
    spec: JobSpec, loop: EventLoop[Any], helpers: HelperProcesses, on_notice: Callable[[str], None],
    say: Callable[[str], None],
) -> PreemptionWatch | None:  # fmt: skip
    """The watch that a job asks for; None where it asks for none."""
    when = spec.launch.preempt_when
    return None if when is None else PreemptionWatch(loop, helpers, when, spec.launch.preempt_every, on_notice, say)
