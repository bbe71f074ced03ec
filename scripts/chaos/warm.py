"""Supervisors and ranks forked from one process that has imported torch already.

A thousand lives would otherwise cost an hour of `import torch`. All is the product's own but for one thing: a rank
is a fork of its supervisor instead of a new interpreter, and looks the same to it: a session of its own, the
same environment, output and parent-death signal, ordinary signal handling, no inherited descriptors.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ftlaunch import cli, proc

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class _Forked:
    """As much of subprocess.Popen as RankProcess uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def forked_ranks(main: Callable[[list[str]], None], births: int) -> type[proc.RankProcess]:
    """A RankProcess whose ranks run `main(arguments of the script)`; each birth is told on descriptor `births`."""

    class ForkedRank(proc.RankProcess):
        def __init__(self, rank: int, argv: Sequence[str], env: Mapping[str, str], log: Path, marker: str) -> None:
            self.rank, self.log, self.marker = rank, log, marker
            parent = os.getpid()
            self.pid = os.fork()
            if self.pid == 0:
                os._exit(_live(main, list(argv[3:]), env, log, parent))
            self._popen = _Forked(self.pid)  # type: ignore[assignment]
            self.pidfd = os.pidfd_open(self.pid)
            self.returncode: int | None = None
            birth = {"rank": rank, "pid": self.pid, "attempt": int(env["FTLAUNCH_ATTEMPT"])}
            os.write(births, json.dumps(birth).encode() + b"\n")

    return ForkedRank


def become(env: Mapping[str, str], out: Path) -> None:
    """In a child just forked: an ordinary process with output of its own, appended to `out`."""
    gc.freeze()  # objects of the parent must not close descriptors whose numbers are ours by then
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_DFL if signum != signal.SIGINT else signal.default_int_handler)
    fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for number, source in enumerate((nothing, fd, fd)):
        os.dup2(source, number)
    os.environ.clear()
    os.environ.update(env)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - for the life of the process
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def _live(
    main: Callable[[list[str]], None], arguments: list[str], env: Mapping[str, str], log: Path, parent: int
) -> int:
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return 1
    become(env, log)
    os.closerange(3, 4096)
    return call(lambda: main(arguments))


def call(function: Callable[[], None]) -> int:
    """Run to the end as an interpreter would; returns the exit code."""
    try:
        function()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - what an interpreter does at its end
        traceback.print_exc()
        return 1
    return 0


class Supervisor:
    """`ftlaunch` in a fork of this process, in a session of its own."""

    def __init__(self, argv: list[str], env: Mapping[str, str], out: Path, main: Callable[[list[str]], None]) -> None:
        """argv: of ftlaunch; it ends with the script (which `main` is called in the place of) and its arguments."""
        self.births, births = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.births, False)
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            become(env, out)
            proc.RankProcess = forked_ranks(main, births)  # type: ignore[misc]
            os._exit(call(lambda: cli.main(argv)))
        os.close(births)
        self.pidfd = os.pidfd_open(self.pid)

    def close(self) -> None:
        """Once it has ended."""
        os.close(self.births)
        os.close(self.pidfd)
