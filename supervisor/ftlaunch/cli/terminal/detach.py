"""`ftlaunch --detach`: the job in a process without a terminal, and the command that waits until it has begun."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from ftlaunch.cli.terminal.terminal_log import log_name
from ftlaunch.history.journal import read_events
from ftlaunch.spec.job_spec import JobSpec, SpecError
from ftlaunch.system.systemd import logout
from ftlaunch_contract.checkpoint.ownership import make_dirs
from ftlaunch_contract.files.kernel_files import open_end
from ftlaunch_contract.protocol import EXIT_DONE

_LOOK = 0.2  # seconds between looks into a journal that another machine writes
_ELSEWHERE = 60.0  # seconds that a job on other hosts has to say in its journal that it has begun


def detach(spec: JobSpec, run: Callable[[Callable[[], None]], int]) -> int:
    """Run a job in a session of its own; returns once it has begun, or has failed to: then its exit code.

    run: runs it to its end, and returns the exit code; calls what it is given once the job has begun. Must be called
    while this process has no threads. Raises SpecError where this process cannot have a child that outlives it.
    """
    if os.getpid() == 1:
        raise SpecError("cannot detach: this is the first process of a container, and its end is the end of all others;"
                        " start the job without --detach")  # fmt: skip
    before = _times_started(spec.run_dir)
    heard, told = os.pipe()
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # until there is a process to pass Ctrl-C on to
    log, written = _nameless_log(spec.run_dir)
    child = os.fork()
    if not child:
        _leave_terminal(written, signals)
        os._exit(_run_detached(os.dup2(told, 3, inheritable=False), run, lambda: _name(log, spec, os.getpid())))
    os.close(written)
    os.close(told)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        ended = _wait(child, heard, spec, before)
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        ended = _end_of(child)
        click.echo("ftlaunch: stopped by Ctrl-C", err=True)
    if ended is not None and ended != EXIT_DONE:
        click.echo(log.read_text(errors="replace"), err=True, nl=False)
        log.unlink()
        return ended
    _name(log, spec, child)
    click.echo(spec.job_id)
    job = spec.job_id
    ways = (
        f"`ftctl attach {job}` shows its terminal, `ftctl logs -f {job}` its ranks' output, `ftctl stop {job}` stops it"
    )
    click.echo(f"ftlaunch: job {job} is detached (pid {child}): {ways}", err=True)
    if warning := logout.warning_here():
        click.echo(f"ftlaunch: {warning}", err=True)
    return EXIT_DONE


def _nameless_log(run_dir: Path) -> tuple[Path, int]:
    """Where the terminal's output goes until the run dir is the job's: a file on the same file system; its descriptor.

    Raises SpecError.
    """
    folder = next(path for path in (run_dir, *run_dir.parents) if path.is_dir())
    try:
        fd, name = tempfile.mkstemp(prefix=".ftlaunch-terminal-", suffix=".log", dir=folder)
    except OSError as error:
        raise SpecError(f"cannot start: {run_dir}: {error.strerror}") from None
    return Path(name), fd


def _leave_terminal(written: int, signals: Iterable[int]) -> None:
    """In the child: a session and output of its own, and no Ctrl-C from before. signals: those to be blocked now."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.signal(signal.SIGINT, signal.SIG_IGN))  # the parent passes on an earlier Ctrl-C
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(written, 1)
    os.dup2(written, 2)


def _run_detached(told: int, run: Callable[[Callable[[], None]], int], name_log: Callable[[], None]) -> int:
    """In the child: run the job; returns its exit code. told: descriptor 3, hears that the job has begun.

    name_log: gives the terminal's output its name, where the command that waits was killed and does not.
    """
    # what a shell or sshd has opened for the command: it waits for those who hold it
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))

    def begun() -> None:
        try:
            os.write(told, b"+")
        except BrokenPipeError:
            name_log()
        os.close(told)

    try:
        return run(begun)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _wait(child: int, heard: int, spec: JobSpec, before: int) -> int | None:
    """Wait until the job has begun (None), or its process has ended: its exit code.

    before: how often its journal said so before. Of a job on other hosts the journal says it, where this machine sees
    it; where it does not, the job counts as begun after a while.
    """
    end, remote = open_end(child), bool(spec.nodes.hosts)
    deadline = time.monotonic() + _ELSEWHERE
    waiting = [heard, end]
    while True:
        ready = select.select(waiting, [], [], _LOOK if remote else None)[0]
        if heard in ready and os.read(heard, 1):
            return None
        if end in ready:
            return _end_of(child)
        waiting = [end] if heard in ready else waiting  # it has ended, or a moment is left until it has
        if remote and (_times_started(spec.run_dir) > before or time.monotonic() > deadline):
            return None


def _end_of(child: int) -> int:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def _times_started(run_dir: Path) -> int:
    try:
        return sum(event["event"] == "job_started" for event in read_events(run_dir))
    except OSError:
        return 0


def _name(log: Path, spec: JobSpec, pid: int) -> None:
    """Give the terminal's output its name in the run dir; an earlier run's gets a number."""
    name = spec.run_dir / log_name(socket.gethostname(), pid, several=spec.nodes.several)
    try:
        make_dirs(spec.run_dir)  # of a job on other hosts only they may have it
        if name.exists():
            number = 1 + sum(1 for _ in spec.run_dir.glob(f"{name.name}.*"))
            name.replace(name.with_name(f"{name.name}.{number}"))
        log.replace(name)
    except OSError as error:
        click.echo(f"ftlaunch: cannot name {name}: {error.strerror}; what the job says is in {log}", err=True)
