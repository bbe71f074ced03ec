"""Starts, watches and ends helper processes: our own processes that work beside the ranks.

Helpers are the saver, autopsies, the notifier, the fork server and the disk check. A sweep kills every descendant that
is not spared by its pid, so each helper must be registered before the next sweep. Starting a helper here registers it;
there is no other way to make a HelperProcess, and no list that somebody has to keep up to date.

    helpers = HelperProcesses()                                      # one for the supervisor
    saver = helpers.start(module("ftlaunch.checkpoints.saver"), stdin=PIPE)
    processes.kill_descendants(helpers.pids, ranks)                  # spares the saver and its descendants
    saver.end(patience=5.0)                                          # from now on helpers.pids lacks the saver
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from subprocess import DEVNULL, PIPE
from typing import IO, Any

from ftlaunch.system import processes
from ftlaunch.system.job_token import without_secrets
from ftlaunch.system.loop import Loop
from ftlaunch_contract.files.kernel_files import open_end

_DYING_SECONDS = 5.0  # that a process may take to die of SIGKILL

__all__ = ["DEVNULL", "PIPE", "HelperProcess", "HelperProcesses"]


class HelperProcess(subprocess.Popen[bytes]):
    """One helper process, made by `HelperProcesses.start` only. As with Popen, `poll` and `wait` reap the process."""

    def end(self, patience: float = 0.0) -> int | None:
        """Wait for the end of the helper, kill it if it takes too long, and reap it.

        Args:
            patience: seconds before SIGKILL is sent.

        Returns:
            The exit status; None if SIGKILL has not ended the helper yet, because it is in a system call that does
            not return (storage that does not answer).
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(patience)
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(_DYING_SECONDS)
        return None

    def forget_at_end(self, loop: Loop) -> None:
        """Have the event loop reap the helper once it ends, so that it does not stay a zombie. Raises OSError."""
        pidfd = open_end(self.pid)

        def reap() -> None:
            loop.unregister(pidfd)
            os.close(pidfd)
            self.wait()

        loop.register(pidfd, reap)


class HelperProcesses:
    """The helpers of one supervisor, or of one preflight. A helper is listed until it has been reaped."""

    def __init__(self) -> None:
        """Start with no helper."""
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
        """Start a helper in a session of its own, so that signals to the supervisor's group do not reach it.

        Args:
            argv: command line.
            stdin: as Popen takes it.
            stdout: as Popen takes it.
            stderr: as Popen takes it; None is the stderr of this process.
            env: environment; None is that of this process. The job's secrets are removed in any case.
            pass_fds: descriptors that stay open in the helper.
            outlives_us: whether the helper finishes its work if this process is killed. Otherwise the helper is killed
                as well, and must be started in the main thread: for the kernel, the parent ends with the thread that
                forked.

        Raises:
            OSError: the process cannot be started.
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
        """The pids of all running helpers. Helpers that have ended are reaped and removed."""
        self._started = [helper for helper in self._started if helper.poll() is None]
        return [helper.pid for helper in self._started]
