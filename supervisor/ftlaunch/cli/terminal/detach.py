"""`ftlaunch --detach`: runs the job in a forked process without a terminal, and waits until the job has begun.

`launch.run_command` calls `detach` on the main thread before any other thread exists. The parent process is the command
that the user typed, and returns once the job has begun. The child process becomes the supervisor; its output goes to a
file in the run dir, which the parent names, or the child if the parent was killed.
"""

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
from ftlaunch.system.systemd import warning_here
from ftlaunch_contract.checkpoint.ownership import make_dirs
from ftlaunch_contract.files.kernel_files import open_end
from ftlaunch_contract.protocol import EXIT_DONE

_POLL_SECONDS = 0.2  # between reads of a journal that another machine writes
_REMOTE_START_SECONDS = 60.0  # after this time a job on other hosts counts as begun, though no journal here shows it


def detach(spec: JobSpec, run: Callable[[Callable[[], None]], int]) -> int:
    """Run a job in a session of its own, and return once the job has begun or has failed to begin.

    Call only while this process has one thread, because the process forks.

    Args:
        spec: the job.
        run: runs the job to its end and returns the exit code; calls its argument once the job has begun.

    Returns:
        0 if the job has begun, else the exit code of the job.

    Raises:
        SpecError: this process is the first of a container, so that no child can outlive it; or no log can be created.
    """
    if os.getpid() == 1:
        raise SpecError("cannot detach: this is the first process of a container, and its end is the end of all others;"
                        " start the job without --detach")  # fmt: skip
    starts_before = _times_started(spec.run_dir)
    begun_read, begun_write = os.pipe()
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # until there is a child to pass Ctrl-C on to
    log, written = _nameless_log(spec.run_dir)
    child = os.fork()
    if not child:
        _leave_terminal(written, signals)
        begun_fd = os.dup2(begun_write, 3, inheritable=False)
        os._exit(_run_detached(begun_fd, run, lambda: _name(log, spec, os.getpid())))
    os.close(written)
    os.close(begun_write)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        ended = _wait_for_begin(child=child, begun_fd=begun_read, spec=spec, starts_before=starts_before)
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
    if warning := warning_here():
        click.echo(f"ftlaunch: {warning}", err=True)
    return EXIT_DONE


def _nameless_log(run_dir: Path) -> tuple[Path, int]:
    """Create the file for the job's terminal output, on the file system of the run dir.

    The file gets its final name once the job has locked the run dir.

    Returns:
        The path of the file, and a descriptor open for writing.

    Raises:
        SpecError: the file cannot be created.
    """
    folder = next(path for path in (run_dir, *run_dir.parents) if path.is_dir())
    try:
        fd, name = tempfile.mkstemp(prefix=".ftlaunch-terminal-", suffix=".log", dir=folder)
    except OSError as error:
        raise SpecError(f"cannot start: {run_dir}: {error.strerror}") from None
    return Path(name), fd


def _leave_terminal(written: int, signals: Iterable[int]) -> None:
    """In the child, leave the terminal: new session, no stdin, output to `written`, and no pending Ctrl-C.

    Args:
        written: descriptor of the terminal log.
        signals: signal mask to restore.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.signal(signal.SIGINT, signal.SIG_IGN))  # the parent passes on an earlier Ctrl-C
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(written, 1)
    os.dup2(written, 2)


def _run_detached(begun_fd: int, run: Callable[[Callable[[], None]], int], name_log: Callable[[], None]) -> int:
    """In the child, run the job and return its exit code.

    Args:
        begun_fd: descriptor 3, the writing end of the pipe that tells the parent that the job has begun.
        run: runs the job.
        name_log: gives the terminal log its name; called if the parent was killed, and cannot do so.
    """
    # Close descriptors that a shell or sshd opened for the command: both wait until nobody holds them.
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))

    def begun() -> None:
        try:
            os.write(begun_fd, b"+")
        except BrokenPipeError:
            name_log()
        os.close(begun_fd)

    try:
        return run(begun)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _wait_for_begin(child: int, begun_fd: int, spec: JobSpec, starts_before: int) -> int | None:
    """Wait until the job has begun or its process has ended.

    The begin of a job on other hosts is read from the journal, if this machine sees the run dir; otherwise the job
    counts as begun after 60 seconds.

    Args:
        child: pid of the job's process.
        begun_fd: reading end of the pipe; a byte says that the job has begun.
        spec: the job.
        starts_before: number of starts in the journal before this one.

    Returns:
        None if the job has begun; the exit code if its process has ended.
    """
    end = open_end(child)
    remote = bool(spec.nodes.hosts)
    deadline = time.monotonic() + _REMOTE_START_SECONDS
    waiting = [begun_fd, end]
    while True:
        ready = select.select(waiting, [], [], _POLL_SECONDS if remote else None)[0]
        if begun_fd in ready and os.read(begun_fd, 1):
            return None
        if end in ready:
            return _end_of(child)
        waiting = [end] if begun_fd in ready else waiting  # the pipe is closed: the process ends now
        if remote and (_times_started(spec.run_dir) > starts_before or time.monotonic() > deadline):
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
    """Give the terminal log its name in the run dir; an earlier run's log of that name gets a number appended."""
    name = spec.run_dir / log_name(socket.gethostname(), pid, several=spec.nodes.several)
    try:
        make_dirs(spec.run_dir)  # missing here if only the other hosts of a job have the run dir
        if name.exists():
            number = 1 + sum(1 for _ in spec.run_dir.glob(f"{name.name}.*"))
            name.replace(name.with_name(f"{name.name}.{number}"))
        log.replace(name)
    except OSError as error:
        click.echo(f"ftlaunch: cannot name {name}: {error.strerror}; what the job says is in {log}", err=True)
