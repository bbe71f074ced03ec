"""The command `ftctl logs`: what the ranks of a job have printed, and what they print now."""

from __future__ import annotations

import select
import sys
import time

import click

from ftlaunch.cli.asking import Cannot, end_of_supervisor
from ftlaunch.cli.terminal.completion import complete_run
from ftlaunch.common.formatting import printable
from ftlaunch.history.rank_logs import Follower, LogReader, attempts, logs_of
from ftlaunch.history.runs import Run, find

_LOOK = 0.2  # seconds between looks at logs that are followed


@click.command(short_help="Show what the ranks have printed.")
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("-f", "--follow", is_flag=True, help="go on with what is printed from now on, until the job ends")
@click.option("--rank", "ranks", type=click.IntRange(min=0), multiple=True, help="only this rank; may be repeated")
@click.option("--attempt", type=click.IntRange(min=0), help="this attempt, not the newest")
def logs(name: str | None, follow: bool, ranks: tuple[int, ...], attempt: int | None) -> int:
    """Show what the ranks of a job have printed in its newest attempt, rank by rank.

    With --follow lines are shown as they come, of each attempt from there on. Every line begins with its rank where
    there are several. Control characters that a job has printed are written out.
    """
    if follow and attempt is not None:
        raise click.UsageError("--follow and --attempt exclude each other: an attempt that is over prints nothing more")
    run = find(name)
    there = attempts(run.log_dir)
    if attempt is not None and attempt not in there:
        known = f"; there are {', '.join(map(str, there))}" if there else ""
        raise Cannot(f"cannot show attempt {attempt} of job {run.job_id}: it has left no logs in {run.log_dir}{known}")
    if not there and not follow:
        raise Cannot(f"cannot show logs of job {run.job_id}: there are none in {run.log_dir}")
    newest = there[-1] if there else 0
    try:
        if follow:
            _follow(run, ranks, newest)
        else:
            _show(run, ranks, newest if attempt is None else attempt)
    except BrokenPipeError:
        raise  # whoever reads has seen enough
    except OSError as error:
        raise Cannot(f"cannot show logs of job {run.job_id}: {error.filename}: {error.strerror}") from error
    return 0


def _show(run: Run, ranks: tuple[int, ...], attempt: int) -> None:
    known = logs_of(run.log_dir, attempt)
    if unknown := [rank for rank in ranks if rank not in known]:
        listed = ", ".join(map(str, known)) or "none"
        raise Cannot(f"cannot show rank {unknown[0]} of attempt {attempt}: it has no log; those with one: {listed}")
    several = len(ranks or known) > 1
    for rank in ranks or known:
        for line in LogReader(known[rank]).read(last=True):
            _print(rank, line, several=several)


def _follow(run: Run, ranks: tuple[int, ...], attempt: int) -> None:
    follower, several = Follower(run.log_dir, ranks, attempt), len(ranks) != 1 and run.start.get("ranks") != 1
    end, over = end_of_supervisor(run), False
    while not over:
        over = _is_over(run, end)  # before the look: what was printed until then is there
        for rank, line in follower.read(last=over):
            _print(rank, line, several=several)
        sys.stdout.flush()


def _is_over(run: Run, end: int | None) -> bool:
    """Whether the job ends within a moment; where its supervisor is elsewhere the journal says it."""
    if end is not None:
        return bool(select.select([end], [], [], _LOOK)[0])
    if run.elsewhere:
        time.sleep(_LOOK)
        return run.again().end is not None
    return True


def _print(rank: int, line: str, *, several: bool) -> None:
    click.echo(f"[{rank}] {printable(line)}" if several else printable(line))
