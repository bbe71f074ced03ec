"""The command `ftctl attach`: follows the terminal output of a detached job until the job ends.

The command only reads the job's terminal log; ending the command leaves the job alone.
"""

from __future__ import annotations

import sys
from functools import partial

import click

from ftlaunch.cli.asking import Cannot, end_of_supervisor, say_that_it_goes_on
from ftlaunch.cli.terminal.completion import complete_run
from ftlaunch.cli.terminal.terminal_log import living_log
from ftlaunch.common.formatting import printable
from ftlaunch.history.rank_logs import LogReader, read_piece, start_of_last_lines
from ftlaunch.history.runs import Run, find
from ftlaunch.history.status_view import not_running
from ftlaunch.system.descriptors import is_readable
from ftlaunch_contract.files.kernel_files import open_end

_POLL_SECONDS = 0.2  # between reads of the terminal log
_PAST_LINES = 10  # lines from before the command that are shown first


@click.command(short_help="Show what the terminal of a detached job shows.")
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
def attach(name: str | None) -> int:
    """Show what the terminal of a detached job shows: its last lines, and all that comes, until the job ends.

    The exit code is the job's. Ctrl-C ends this command, and not the job.
    """
    run = find(name)
    found = living_log(run)
    if found is None:
        raise Cannot(f"cannot attach to job {run.job_id}: {_why_not(run)}")
    path, pid = found
    try:
        end = open_end(pid)
        reader = LogReader(start_of_last_lines(path, _PAST_LINES))
        over = False
        while not over:
            over = is_readable(end, _POLL_SECONDS)  # before the read, so that the last read sees all output
            for line in reader.read(partial(read_piece, path), last=over):
                click.echo(printable(line))
            sys.stdout.flush()
    except KeyboardInterrupt:
        ways = f"`ftctl attach {run.job_id}` comes back to it, `ftctl stop {run.job_id}` stops it"
        return say_that_it_goes_on(run, ways)
    except ProcessLookupError:
        pass  # the process has just ended
    except BrokenPipeError:
        raise  # the reader of the pipe has gone, which is no error of the job
    except OSError as error:
        raise Cannot(f"cannot attach to job {run.job_id}: {error.filename}: {error.strerror}") from error
    return _code_of(run.reload())


def _code_of(run: Run) -> int:
    """Return the job's exit code.

    Raises:
        Cannot: the journal has no end of the run.
    """
    if run.end is not None:
        return int(run.end.get("code", 1))
    if run.elsewhere or run.agents or end_of_supervisor(run) is not None:
        raise Cannot(f"job {run.job_id} goes on without the process whose output this was")
    raise Cannot(f"job {run.job_id} is not running: {not_running(run)}")


def _why_not(run: Run) -> str:
    """Say why there is no terminal log to follow, and which command shows the job instead."""
    instead = f"`ftctl logs -f {run.job_id}` shows what its ranks print, `ftctl status {run.job_id}` what it does"
    if run.elsewhere:
        return f"its terminal is on {run.elsewhere}; {instead}"
    if end_of_supervisor(run) is not None or (run.end is None and run.agents):
        return f"it was not detached, and its terminal is where it was started (pid {run.pid}); {instead}"
    return f"it is not running: {not_running(run)}"
