"""The command `ftctl`: check, rehearse, plan, watch, stop and clean jobs, and show what they did and saved.

RUN is a run dir or a job id; without it the only run in ./runs is meant. Exit codes: 0 done; 1 the job is not
running, did not stop, or something had to stay; 2 bad usage.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from ftlaunch import __version__
from ftlaunch.cli.asking import INTERRUPTED, NO, Cannot, NotRunning, ask_job, end_of_supervisor
from ftlaunch.cli.checkpoints import checkpoints
from ftlaunch.cli.jobs import jobs
from ftlaunch.cli.parameters import seconds
from ftlaunch.cli.recovery import recovery
from ftlaunch.cli.terminal.attach import attach
from ftlaunch.cli.terminal.completion import complete_run, completion
from ftlaunch.cli.terminal.help import SectionedGroup, usage_sentence
from ftlaunch.cli.terminal.logs import logs
from ftlaunch.cli.terminal.progress import progress
from ftlaunch.common.formatting import duration, printable
from ftlaunch.extensions import COMMANDS
from ftlaunch.history.runs import CannotFind, Run, find, find_to_ask, memories_of
from ftlaunch.history.status_view import not_running, status_lines
from ftlaunch.memory import cleanup
from ftlaunch.system.descriptors import is_readable
from ftlaunch_contract.protocol import EXIT_USAGE, memory_root

_POLL_SECONDS = 0.2  # between reads of the journal of a job whose head is on another machine


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command that `argv` (default: the program's arguments) names, and exit with its code."""
    sys.exit(_main(sys.argv[1:] if argv is None else argv))


def _main(argv: Sequence[str]) -> int:
    try:
        return int(command.main(list(argv), "ftctl", standalone_mode=False) or 0)
    except click.UsageError as error:
        _say(f"cannot read the command line: {usage_sentence(error)}; see `{_command_path(error)} --help`")
        return EXIT_USAGE
    except click.Abort:
        _say("interrupted")
        return INTERRUPTED
    except click.ClickException as error:
        _say(error.message)
        return error.exit_code
    except CannotFind as error:
        _say(f"cannot {error.lacking} the run: {error}")
        return EXIT_USAGE


def _command_path(error: click.UsageError) -> str:
    return "ftctl" if error.ctx is None else error.ctx.command_path


def _say(sentence: str) -> None:
    click.echo(f"ftctl: {sentence}", err=True)


@click.group(
    cls=SectionedGroup,
    elsewhere=COMMANDS,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="ftctl %(version)s")
def command() -> None:
    """Ask and command jobs that run under ftlaunch.

    RUN is a run dir or a job id; without it, the only run in ./runs. Exit codes: 0 done; 1 the job is not
    running, did not stop, or something had to stay; 2 bad usage.
    """


command.add_command(checkpoints)
command.add_command(recovery)
command.add_command(logs)
command.add_command(attach)
command.add_command(jobs)
command.add_command(completion)


_run = click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
_json = click.option("--json", "as_json", is_flag=True, help="print JSON")


@command.command()
@_run
@_json
def status(name: str | None, as_json: bool) -> int:
    """Show what a running job does, rank by rank."""
    run = find_to_ask(name)
    try:
        answer = ask_job(run, name, {"do": "status"})
    except NotRunning:
        if as_json:
            click.echo(json.dumps({"running": False, "job_id": run.job_id, "ended": run.reload().end}, indent=1))
        else:
            click.echo(printable(f"job {run.job_id} is not running: {not_running(run.reload())}"))
        return NO
    click.echo(json.dumps({"running": True, **answer}, indent=1) if as_json else "\n".join(status_lines(answer)))
    return 0


@command.command()
@_run
@click.option("--no-wait", is_flag=True, help="only ask, do not wait for the end")
@click.option("--timeout", callback=seconds, default="5m", show_default=True, help="longest wait, as 90s or 5m")
def stop(name: str | None, no_wait: bool, timeout: float) -> int:
    """Ask a job to save its newest step and stop; wait until it has."""
    run = find_to_ask(name)
    pidfd = end_of_supervisor(run)
    if pidfd is None and not run.elsewhere and (run.end is not None or not run.agents):
        raise Cannot(f"cannot stop job {run.job_id}: it is not running: {not_running(run)}")
    try:
        ask_job(run, name, {"do": "stop", "why": "ftctl stop"})
        who = f"pid {run.pid}" if pidfd is not None else "by the agent on this machine"
        click.echo(f"job {run.job_id} ({who}) is asked to stop")
        if no_wait:
            return 0
    except NotRunning:
        pass  # it has ended by itself meanwhile
    try:
        over = _wait_for_end(run, pidfd, timeout)
    except KeyboardInterrupt:
        _say(f"interrupted; job {run.job_id} was asked to stop and still does: `ftctl status {run.job_id}` shows it")
        return INTERRUPTED
    if not over:
        who = f" (pid {run.pid})" if pidfd is not None else ""
        raise Cannot(f"job {run.job_id}{who} still runs {duration(timeout)} after it was asked to stop")
    if run.deleted:
        click.echo(printable(f"job {run.job_id} has ended; how is not known here, as its {run.lost}"))
        return 0
    run = run.reload()
    click.echo(printable(f"job {run.job_id}: {not_running(run)}"))
    return 0 if run.end is not None and run.end["event"] in ("job_stopped", "job_finished") else NO


def _wait_for_end(run: Run, pidfd: int | None, seconds: float) -> bool:
    """Wait up to `seconds` for the end of the job. Return whether the job ended.

    Args:
        run: the run of the job.
        pidfd: the supervisor's pidfd; None if the head runs elsewhere, and only the journal can tell the end.
        seconds: longest wait.
    """
    if pidfd is not None:
        return is_readable(pidfd, seconds)
    deadline = time.monotonic() + seconds
    while run.reload().end is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


@command.command()
@_run
@click.option("--all", "every", is_flag=True, help="every job of this user that is not running")
@click.option("--force", is_flag=True, help="also snapshots that are newer than every checkpoint")
def clean(name: str | None, every: bool, force: bool) -> int:
    """Remove what killed jobs have left in memory (/dev/shm)."""
    if every and name is not None:
        raise click.UsageError("RUN and --all exclude each other")
    root = memory_root(os.getuid())
    targets = cleanup.job_dirs(root) if every else _memory_of(name)
    code = 0
    lines_printed = 0
    for directory in targets:
        if not directory.is_dir():
            continue
        lines_printed += 1
        try:
            with progress(f"removing {directory.name}", cleanup.bytes_of(directory)) as advance:
                sentence = cleanup.clean_job(directory, force, advance)
            click.echo(sentence)
        except cleanup.CleanupRefused as refusal:
            _say(f"cannot clean: {refusal}")
            code = NO
        except OSError as error:
            _say(f"cannot clean {directory}: {error.strerror}")
            code = NO
    for sentence in cleanup.sweep(root):
        click.echo(sentence)
        lines_printed += 1
    if not lines_printed:
        click.echo("nothing to remove")
    return code


def _memory_of(name: str | None) -> list[Path]:
    """Return the memory directories of the run that `name` means.

    If only memory is left of a job, `name` may be its job id.
    """
    try:
        run = find(name)
    except CannotFind:
        if name is None or not (left := memories_of(name)):
            raise
        return left
    directory = run.memory_dir
    agents = run.agents
    if agents and not run.has_memory:
        return agents
    if directory.parent != memory_root(os.getuid()):
        raise Cannot(f"cannot clean {directory}: it is not in {memory_root(os.getuid())}")
    return [directory, *agents] if run.has_memory else []


if __name__ == "__main__":
    main()
