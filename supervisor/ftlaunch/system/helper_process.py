"""Starts, watches and ends helper processes: the processes of our own that work beside the ranks.

They are the saver, an autopsy, the notifier, the fork server and the disk check. A sweep kills every descendant that
is not named to it, so each helper must be known before the next sweep. A helper is registered by being started here:
there is no other way to make a HelperProcess, and no list that somebody has to keep up to date.

    helpers = HelperProcesses()                                      # one for the supervisor
    saver = helpers.start(module("ftlaunch.checkpoints.saver"), stdin=PIPE)
    processes.kill_descendants(helpers.pids, ranks)                  # spares the saver and what the saver has started
    saver.end(patience=5.0)                                          # from now on helpers.pids is without it
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from subprocess import DEVNULL, PIPE
from typing import IO, Any, Protocol

from ftlaunch.system import processes
from ftlaunch.system.job_token import without_secrets
from ftlaunch_contract.files.kernel_files import open_end

_DYING = 5.0  # seconds that a process may take to die of SIGKILL

__all__ = ["DEVNULL", "PIPE", "HelperProcess", "HelperProcesses", "WaitsForEnds"]


class WaitsForEnds(Protocol):
    """Where the end of a helper is waited for: the event loop."""

    def register(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` whenever `fd` is readable."""

    def unregister(self, fd: int) -> None:
        """No longer."""


class HelperProcess(subprocess.Popen[bytes]):
    """One helper, to be had from HelperProcesses.start only. `poll` and `wait` take its exit status, as Popen does."""

    def end(self, patience: float = 0.0) -> int | None:
        """Wait `patience` seconds for its end, then SIGKILL it and wait; returns its exit status.

        None: SIGKILL has not ended it yet, because it is in a system call that does not come back (storage that does
        not answer). It ends when that does.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(patience)
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(_DYING)
        return None

    def forget_at_end(self, loop: WaitsForEnds) -> None:
        """Have the exit status taken once it ends: until then a dead process would stand in the list of processes."""
        end = open_end(self.pid)

        def take() -> None:
            loop.unregister(end)
            os.close(end)
            self.wait()

        loop.register(end, take)


class HelperProcesses:
    """The helpers of one supervisor, or of one preflight. A helper is listed until its exit status has been taken."""

    def __init__(self) -> None:
        self._started: list[HelperProcess] = []

    def start(
        self,
        argv: Sequence[str],
        *,
        stdin: int | IO[Any] = DEVNULL,
        stdout: int | IO[Any] = DEVNULL,
        stderr: int | IO[Any] | None = None,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        outlives_us: bool = False,
    ) -> HelperProcess:
        """Start a helper in a session of its own: a signal to the supervisor's group is not meant for it.

        stderr, env: None is ours; the job's token is left out of every environment.
        pass_fds: descriptors that stay open in it; no other does.
        outlives_us: what it has begun is finished after a SIGKILL to us; otherwise it is killed with us, and then must
        be started in the main thread: the kernel takes the end of the thread that forked for the end of the parent.
        Raises OSError.
        """
        helper = HelperProcess(
            argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=without_secrets(os.environ if env is None else env),
            pass_fds=pass_fds,
            start_new_session=True,
            preexec_fn=None if outlives_us else processes.dies_with(os.getpid()),
        )
        self._started.append(helper)
        return helper

    @property
    def pids(self) -> list[int]:
        """Of all helpers that run now. Takes the exit status of those that have ended, and forgets them."""
        self._started = [helper for helper in self._started if helper.poll() is None]
        return [helper.pid for helper in self._started]
