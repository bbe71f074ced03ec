"""Sends requests of `ftctl` commands to a running job.

A request goes to the job's supervisor on this machine. If the head of a job of several nodes runs elsewhere, the
request goes to an agent on this machine, which passes the request on to the head. The functions run on the main thread
of a command, and block until there is an answer.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click

from ftlaunch.common.formatting import duration
from ftlaunch.history.runs import Run
from ftlaunch.system.control_socket import SOCKET, ask
from ftlaunch_contract.files.kernel_files import open_end

_LISTEN_SECONDS = 5.0  # a living supervisor must listen on its socket within this time
NO = 1
"""exit code: the answer is no"""
INTERRUPTED = 130
"""exit code: Ctrl-C ended the command, and the job goes on"""


class Cannot(click.ClickException):
    """The command cannot do what the user asked for; the message says what and why."""

    exit_code = NO


class NotRunning(Exception):
    """The job has no running supervisor, and no agent on this machine."""


def ask_job(run: Run, name: str | None, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to a job and return the answer.

    A stop is refused if systemd would start the job again afterwards.

    Args:
        run: the run of the job.
        name: the run as the user named it; the name of an agent's memory directory selects that agent.
        request: the request, as `control_socket.ask` sends it.

    Raises:
        NotRunning: nothing on this machine runs the job.
        Cannot: nobody answers, or the answer is a refusal.
    """
    if request["do"] == "stop" and (command := run.start.get("stop_command")) and run.end is None:
        reason = f"systemd would start it again after it; `{command}` stops it for good, and saves its newest step, too"
        raise Cannot(f"cannot stop job {run.job_id} from here: {reason}")
    agents = run.agents
    named = [directory for directory in agents if directory.name == name]
    if named:
        return _checked(run, _ask_one_of(run, named, request))
    try:
        # Where several run dirs of one job are on this machine, only one of them is the head's.
        if not run.elsewhere and (run.has_memory or not agents):
            return _checked(run, _ask_here(run, request))
    except NotRunning:
        if run.end is not None or not agents:
            raise
    return _checked(run, _ask_one_of(run, agents, request))


def _checked(run: Run, answer: dict[str, Any]) -> dict[str, Any]:
    if not answer.get("ok"):
        error = str(answer.get("error", "the answer cannot be understood"))
        raise Cannot(error if error.startswith("cannot ") else f"cannot ask job {run.job_id}: {error}")
    return answer


def _ask_one_of(run: Run, agents: list[Path], request: dict[str, Any]) -> dict[str, Any]:
    for directory in agents:
        try:
            return ask(directory / SOCKET, request)
        except (FileNotFoundError, ConnectionError):
            continue  # that agent was killed
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise Cannot(f"cannot ask job {run.job_id}: its agent on this node does not answer: {why}") from error
    if run.elsewhere:
        raise Cannot(
            f"cannot ask job {run.job_id}: it was started on {run.elsewhere} and has told no end, and none of its"
            " agents runs on this machine; ask on a machine where one does"
        )
    raise NotRunning


def _ask_here(run: Run, request: dict[str, Any]) -> dict[str, Any]:
    """Ask the supervisor on this machine; wait up to 5 seconds for a living supervisor to listen."""
    deadline = time.monotonic() + _LISTEN_SECONDS
    while True:
        try:
            if not run.has_memory:
                raise FileNotFoundError
            return ask(run.memory_dir / SOCKET, request)
        except (FileNotFoundError, ConnectionError, ValueError):
            if not run.alive:
                raise NotRunning from None
            if time.monotonic() > deadline:
                raise Cannot(
                    f"cannot ask job {run.job_id}: its supervisor (pid {run.pid}) lives but does not listen"
                    f" (waited {duration(_LISTEN_SECONDS)}); it may be starting or ending"
                ) from None
        except OSError as error:
            raise Cannot(f"cannot ask job {run.job_id}: {error.strerror or error}") from error
        time.sleep(0.05)


def end_of_supervisor(run: Run) -> int | None:
    """Open a pidfd that becomes readable when the supervisor ends. The caller closes the descriptor.

    Returns:
        The descriptor; None if no supervisor of the run lives on this machine.

    Raises:
        DamagedJournal: the journal of the run cannot be read.
    """
    if run.elsewhere:
        return None
    try:
        pidfd = open_end(run.pid)
    except ProcessLookupError:
        return None
    lives = False
    try:
        lives = run.alive  # only after the pidfd is open: a pid in use cannot be given to another process
    finally:
        if not lives:
            os.close(pidfd)
    return pidfd if lives else None


def say_that_it_goes_on(run: Run, ways: str = "") -> int:
    """Tell the user that Ctrl-C ended only the command, not the job.

    Args:
        run: the run that goes on.
        ways: commands that the user may want next, as part of the sentence.

    Returns:
        The exit code of the command.
    """
    click.echo(f"ftctl: job {run.job_id} goes on{ways and ': '}{ways}", err=True)
    return INTERRUPTED
