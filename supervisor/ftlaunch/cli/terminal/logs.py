"""The command `ftctl logs`: what the ranks of a job have printed, and what they print now."""

from __future__ import annotations

import contextlib
import sys
import time
from datetime import datetime

import click

from ftlaunch.cli.asking import Cannot, end_of_supervisor, say_that_it_goes_on
from ftlaunch.cli.terminal.completion import complete_run
from ftlaunch.common.durations import parse_duration
from ftlaunch.common.formatting import printable
from ftlaunch.history.logs.follower import Begins, Follower
from ftlaunch.history.logs.newest_run import NewestRun
from ftlaunch.history.logs.notes import lengths_at
from ftlaunch.history.rank_logs import LogReader, attempts, logs_of, start_of_line
from ftlaunch.history.runs import Run, find
from ftlaunch.system.descriptors import is_readable

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
    there are several. Control characters that a job has printed are written out. Of a job that was started again only
    the newest run is shown; --since shows the runs before it, too.

    Lines have no times: every 10 seconds it is noted how long the logs are, so --since shows up to 10 seconds more than
    was asked for, and of jobs with hundreds of ranks some minutes more.
    """
    if follow and attempt is not None:
        raise click.UsageError("--follow and --attempt exclude each other: an attempt that is over prints nothing more")
    run = find(name)
    try:
        newest = NewestRun(run.run_dir, run.log_dir)
        newest.look()
        if follow:
            return _follow(run, newest, ranks, since)
        asked = _asked(run, newest, attempt, since)
        begins = _begins(run, newest, asked) if since is None else _begins_since(run, asked, since)
        if not sum(_show(run, ranks, number, begins, strict=len(asked) == 1) for number in asked):
            nothing = f"the ranks of job {run.job_id} have printed nothing {_where(asked, since)}"
            click.echo(f"ftctl: {nothing}", err=True)
    except BrokenPipeError:
        raise  # whoever reads has seen enough
    except OSError as error:
        raise Cannot(f"cannot show logs of job {run.job_id}: {error.filename}: {error.strerror}") from error
    return 0


def _asked(run: Run, newest: NewestRun, attempt: int | None, since: float | None) -> list[int]:
    """The attempts that are to be shown, those of earlier runs first. Raises Cannot where there are none."""
    there = attempts(run.log_dir)
    if attempt is not None and attempt not in there:
        known = f"; there are {', '.join(map(str, there))}" if there else ""
        raise Cannot(f"cannot show attempt {attempt} of job {run.job_id}: it has left no logs in {run.log_dir}{known}")
    if not there:
        raise Cannot(f"cannot show logs of job {run.job_id}: there are none in {run.log_dir}")
    if attempt is not None:
        return [attempt]
    if since is not None:
        return [*newest.earlier(), *newest.attempts()]
    if not (own := newest.attempts()):
        earlier = "`--since` and `--attempt` show those of earlier runs"
        raise Cannot(f"cannot show logs of job {run.job_id}: its newest run has started no ranks yet; {earlier}")
    return own[-1:]


def _begins(run: Run, newest: NewestRun, asked: list[int]) -> dict[tuple[int, int], int]:
    """Where the newest run begins in the logs of attempts; a log in which it has nothing is not among them.

    Those of an attempt that only earlier runs had are read from their beginnings.
    """
    earlier = newest.earlier()
    known = {(number, rank): path for number in asked for rank, path in logs_of(run.log_dir, number).items()}
    found = {key: 0 if key[0] in earlier else newest.begin(*key, path) for key, path in known.items()}
    return {key: begin for key, begin in found.items() if begin is not None}


def _begins_since(run: Run, asked: list[int], since: float) -> dict[tuple[int, int], int]:
    """Where each log is read from: where it was at that time, or at its end, where it has not grown since."""
    begins = {}
    for attempt in asked:
        lengths = lengths_at(run.log_dir / f"attempt_{attempt}", since)
        for rank, path in logs_of(run.log_dir, attempt).items():
            found = path.stat()
            begins[attempt, rank] = 0
            if found.st_mtime < since:
                begins[attempt, rank] = found.st_size
            elif lengths is not None:
                begins[attempt, rank] = start_of_line(path, lengths.get(rank, 0))
    return begins


def _show(run: Run, ranks: tuple[int, ...], attempt: int, begins: Begins, *, strict: bool) -> int:
    """Returns how many lines there were. strict: a rank without a log is refused, and not passed over."""
    known = {rank: path for rank, path in logs_of(run.log_dir, attempt).items() if (attempt, rank) in begins}
    unknown = [rank for rank in ranks if rank not in known]
    if unknown and strict:
        listed = ", ".join(map(str, known)) or "none"
        raise Cannot(f"cannot show rank {unknown[0]} of attempt {attempt}: it has no log; those with one: {listed}")
    several, lines = len(ranks or known) > 1, 0
    for rank in [rank for rank in ranks or known if rank in known]:
        for line in LogReader(known[rank], begins[attempt, rank]).read(last=True):
            _print(rank, line, several=several)
            lines += 1
    return lines


def _where(asked: list[int], since: float | None) -> str:
    if since is None:
        return f"in attempt {asked[0]}"
    return "since " + datetime.fromtimestamp(since).strftime("%Y-%m-%d %H:%M:%S")


def _follow(run: Run, newest: NewestRun, ranks: tuple[int, ...], since: float | None) -> int:
    own, begins = newest.attempts(), {}
    if since is not None:
        begins = _begins_since(run, [*newest.earlier(), *own], since)
        for number in newest.earlier():
            _show(run, ranks, number, begins, strict=False)
    first = 0 if since is not None or not own else own[-1]
    follower, several = (
        Follower(newest, run.log_dir, ranks, first, begins),
        len(ranks) != 1 and run.start.get("ranks") != 1,
    )
    end, over = end_of_supervisor(run), False
    try:
        while not over:
            over = _is_over(run, end)  # before the look: what was printed until then is there
            for rank, line in follower.read(last=over):
                _print(rank, line, several=several)
            sys.stdout.flush()
    except KeyboardInterrupt:
        return say_that_it_goes_on(run)
    return 0


def _is_over(run: Run, end: int | None) -> bool:
    """Whether the job ends within a moment; where its supervisor is elsewhere the journal says it."""
    if end is not None:
        return is_readable(end, _LOOK)
    if run.elsewhere:
        time.sleep(_LOOK)
        return run.again().end is not None
    return True


def _print(rank: int, line: str, *, several: bool) -> None:
    click.echo(f"[{rank}] {printable(line)}" if several else printable(line))
