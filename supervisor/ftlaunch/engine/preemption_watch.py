"""Asks periodically whether this machine will be taken away: a file exists, or a command ends with exit code 0.

The watch runs on the event loop in the main thread; `engine/main.py` makes one for a job with `preempt_when`. A helper
process does the asking, even for a file: on a file system that does not answer, the process hangs and the loop goes on.
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

_DEADLINE_SECONDS = 10.0
"""how long one answer may take"""
_YES = 0
_NO = 1
"""exit codes of the process that asks; every other exit code is no answer"""


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
        """Begin to ask, in the first turn of the loop. Main thread only.

        Args:
            loop: waits for the end of each helper process, and for the time of the next one.
            helpers: starts the processes that ask.
            when: the name of a file, or a command for /bin/sh.
            every: seconds between an answer and the next question.
            on_notice: called once, with the reason, when the machine will be taken away.
            say: called with a sentence when there is no answer; called once for each reason.
        """
        self._loop = loop
        self._helpers = helpers
        self._when = when
        self._every = every
        self._on_notice = on_notice
        self._say = say
        self._complaints: set[str] = set()
        self._asking: tuple[HelperProcess, int] | None = None  # the process, and a descriptor readable at its end
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
        self._loop.call_at(time.monotonic() + _DEADLINE_SECONDS, self, self._on_deadline)

    def _ask_later(self) -> None:
        self._loop.call_at(time.monotonic() + self._every, self, self._ask)

    def _on_deadline(self) -> None:
        """Kill the process that gives no answer.

        The next process starts only after the end of this one is seen, so that processes which SIGKILL cannot end yet
        do not pile up.
        """
        self._complain(f"it gives no answer within {_DEADLINE_SECONDS:g} s")
        self._kill_process()

    def _on_end(self) -> None:
        code = self._reap_exit_code()
        if code == _YES:
            self._on_notice(f"preemption notice: {self._describe_notice()}")
            return
        if code > _NO:
            self._complain(f"it ends with exit code {code}, where 0 is yes and 1 is no")
        elif code < 0 and -code != signal.SIGKILL:
            self._complain(f"it was killed by {signal_name(-code)}")
        self._ask_later()

    def _describe_notice(self) -> str:
        found = "is there" if names_file(self._when) else "says that this machine will be taken away"
        return f"{shown(self._when)} {found}"

    def _complain(self, why: str) -> None:
        if why not in self._complaints:
            self._complaints.add(why)
            self._say(f"cannot tell whether this machine will be taken away (`{shown(self._when)}`): {why}; asking on")

    def _reap_exit_code(self) -> int:
        """Reap the process that has ended and return its exit code; negative: the signal that ended the process."""
        assert self._asking is not None
        process, end = self._asking
        self._asking = None
        self._loop.cancel(self)
        self._loop.unregister(end)
        os.close(end)
        return process.wait()

    def _kill_process(self) -> None:
        """SIGKILL the process that asks and the processes that it has started."""
        assert self._asking is not None
        process = self._asking[0]
        # The number of the group belongs to the process only until its exit status is taken.
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Stop asking, and kill the process that is asking now. May be called after a notice, too."""
        self._loop.cancel(self)
        if self._asking is not None:
            self._kill_process()
            _, end = self._asking
            self._loop.unregister(end)
            os.close(end)
            self._asking = None


def watch_for(
    spec: JobSpec, loop: EventLoop[Any], helpers: HelperProcesses, on_notice: Callable[[str], None],
    say: Callable[[str], None],
) -> PreemptionWatch | None:  # fmt: skip
    """Start the watch that a job asks for with `preempt_when`; return None if the job asks for none."""
    when = spec.launch.preempt_when
    if when is None:
        return None
    return PreemptionWatch(
        loop=loop, helpers=helpers, when=when, every=spec.launch.preempt_every, on_notice=on_notice, say=say
    )
