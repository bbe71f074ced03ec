"""The command `ftctl logs`: what the ranks of a job have printed, and what they print now."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from datetime import datetime

import click

from ftlaunch.cli.asking import Cannot, end_of_supervisor
from ftlaunch.cli.terminal.completion import complete_run
from ftlaunch.common.durations import parse_duration
from ftlaunch.common.formatting import printable
from ftlaunch.history.rank_logs import Begins, Follower, LogReader, attempts, lengths_at, logs_of, start_of_line
from ftlaunch.history.runs import Run, find

_LOOK = 0.2  # seconds between looks at logs that are followed


def _moment(_context: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    """Seconds of the epoch: a duration before now, or a time, of this machine's zone where it names none."""
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        return time.time() - parse_duration(text)
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        raise click.BadParameter(f"{text!r} is no duration and no time; write 10m or 2031-01-02T15:04") from None


@click.command(short_help="Show what the ranks have printed.")
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("-f", "--follow", is_flag=True, help="go on with what is printed from now on, until the job ends")
@click.option("--rank", "ranks", type=click.IntRange(min=0), multiple=True, help="only this rank; may be repeated")
@click.option("--attempt", type=click.IntRange(min=0), help="this attempt, not the newest")
@click.option("--since", callback=_moment, metavar="TIME",
              help="only what was printed since then, in every attempt: 10m ago, or at 2031-01-02T15:04")  # fmt: skip
def logs(name: str | None, follow: bool, ranks: tuple[int, ...], attempt: int | None, since: float | None) -> int:
    """Show what the ranks of a job have printed in its newest attempt, rank by rank.

    With --follow lines are shown as they come, of each attempt from there on. Every line begins with its rank where
    there are several. Control characters that a job has printed are written out.

    Lines have no times: every 10 seconds it is noted how long the logs are, so --since shows up to 10 seconds more than
    was asked for, and of jobs with hundreds of ranks some minutes more.
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
        begins = {} if since is None else _begins(run, there if attempt is None else [attempt], since)
        if follow:
            _follow(run, ranks, newest if since is None or not there else there[0], begins)
        else:
            for number in there if since is not None and attempt is None else [newest if attempt is None else attempt]:
                _show(run, ranks, number, begins)
    except BrokenPipeError:
        raise  # whoever reads has seen enough
    except OSError as error:
        raise Cannot(f"cannot show logs of job {run.job_id}: {error.filename}: {error.strerror}") from error
    return 0


def _begins(run: Run, there: list[int], since: float) -> dict[tuple[int, int], int]:
    """Where each log is read from: where it was at that time, or at its end, where it has not grown since."""
    begins = {}
    for attempt in there:
        lengths = lengths_at(run.log_dir, attempt, since)
        for rank, path in logs_of(run.log_dir, attempt).items():
            found = path.stat()
            if found.st_mtime < since:
                begins[attempt, rank] = found.st_size
            elif lengths is not None:
                begins[attempt, rank] = start_of_line(path, lengths.get(rank, 0))
    return begins


def _show(run: Run, ranks: tuple[int, ...], attempt: int, begins: Begins) -> None:
    known = logs_of(run.log_dir, attempt)
    if unknown := [rank for rank in ranks if rank not in known]:
        listed = ", ".join(map(str, known)) or "none"
        raise Cannot(f"cannot show rank {unknown[0]} of attempt {attempt}: it has no log; those with one: {listed}")
    several = len(ranks or known) > 1
    for rank in ranks or known:
        for line in LogReader(known[rank], begins.get((attempt, rank), 0)).read(last=True):
            _print(rank, line, several=several)


def _follow(run: Run, ranks: tuple[int, ...], attempt: int, begins: Begins) -> None:
    follower, several = Follower(run.log_dir, ranks, attempt, begins), len(ranks) != 1 and run.start.get("ranks") != 1
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
