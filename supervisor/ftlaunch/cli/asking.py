"""Asks a running job: its supervisor, or on another node of several the agent there, which asks the head."""

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

_LISTENS = 5.0  # seconds within which a living supervisor must listen on its socket
NO = 1
"""exit code: the answer is no"""
INTERRUPTED = 130
"""exit code: Ctrl-C has ended the command, and nothing else"""


class Cannot(click.ClickException):
    """What was asked for cannot be done; the message says what and why."""

    exit_code = NO


class NotRunning(Exception):
    """No supervisor runs the job."""


def ask_job(run: Run, name: str | None, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request. name: as the user has named the run; of an agent's memory, that agent is asked.

    Raises NotRunning or Cannot. A job that would be started again after the stop is not asked to stop.
    """
    if request["do"] == "stop" and (command := run.start.get("stop_command")) and run.end is None:
        again = f"systemd would start it again after it; `{command}` stops it for good, and saves its newest step, too"
        raise Cannot(f"cannot stop job {run.job_id} from here: {again}")
    agents = run.agents
    named = [directory for directory in agents if directory.name == name]
    if named:
        return _checked(run, _ask_one_of(run, named, request))
    try:
        if not run.elsewhere:
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
    """Ask the supervisor, on this machine."""
    deadline = time.monotonic() + _LISTENS
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
                    f" (waited {duration(_LISTENS)}); it may be starting or ending"
                ) from None
        except OSError as error:
            raise Cannot(f"cannot ask job {run.job_id}: {error.strerror or error}") from error
        time.sleep(0.05)


def end_of_supervisor(run: Run) -> int | None:
    """What becomes readable when the supervisor ends; None where it does not live on this machine.

    Raises DamagedJournal.
    """
    if run.elsewhere:
        return None
    try:
        pidfd = open_end(run.pid)
    except ProcessLookupError:
        return None
    lives = False
    try:
        lives = run.alive  # in this order: a living process cannot be replaced under its pidfd
    finally:
        if not lives:
            os.close(pidfd)
    return pidfd if lives else None


def say_that_it_goes_on(run: Run, ways: str = "") -> int:
    """Of a command that only looks, and that Ctrl-C has ended; returns its exit code. ways: what can be done now."""
    click.echo(f"ftctl: job {run.job_id} goes on{ways and ': '}{ways}", err=True)
    return INTERRUPTED
