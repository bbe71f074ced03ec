"""The command `ftctl logs`: shows what the ranks of a job have printed, or follows their output.

The command only reads the log files, the notes of their lengths, and the journal. Positions in logs are byte offsets,
kept in mappings from (attempt, rank).
"""

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
from ftlaunch.history.log_notes import lengths_at
from ftlaunch.history.rank_logs import LogReader, attempts, logs_of, start_of_line
from ftlaunch.history.run_logs import Begins, Follower, NewestRun
from ftlaunch.history.runs import Run, find
from ftlaunch.system.descriptors import is_readable

_POLL_SECONDS = 0.2  # between reads of logs that are followed


def _moment(_context: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    """Parse `--since` into seconds since the epoch; a click callback.

    The text is a duration before now, or a time; a time without a zone is in this machine's zone.

    Raises:
        click.BadParameter: the text is neither.
    """
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
        newest.read_journal()
        if follow:
            return _follow(run, newest, ranks=ranks, since=since)
        numbers = _attempts_to_show(run, newest, attempt=attempt, since=since)
        begins = _begins(run, newest, numbers) if since is None else _begins_since(run, numbers, since)
        strict = len(numbers) == 1
        if not sum(_show(run, ranks, attempt=number, begins=begins, strict=strict) for number in numbers):
            nothing = f"the ranks of job {run.job_id} have printed nothing {_where(numbers, since)}"
            click.echo(f"ftctl: {nothing}", err=True)
    except BrokenPipeError:
        raise  # the reader of the pipe has gone, which is no error of the job
    except OSError as error:
        raise Cannot(f"cannot show logs of job {run.job_id}: {error.filename}: {error.strerror}") from error
    return 0


def _attempts_to_show(run: Run, newest: NewestRun, attempt: int | None, since: float | None) -> list[int]:
    """Return the numbers of the attempts to show, those of earlier runs first.

    Raises:
        Cannot: there is no such attempt, or none at all.
    """
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


def _begins(run: Run, newest: NewestRun, numbers: list[int]) -> dict[tuple[int, int], int]:
    """Return where the newest run begins in the logs of the attempts `numbers`, without logs that the run lacks.

    Logs of an attempt that only earlier runs had begin at 0.

    Returns:
        Byte offset by (attempt, rank).
    """
    earlier = newest.earlier()
    begins: dict[tuple[int, int], int] = {}
    for number in numbers:
        for rank, path in logs_of(run.log_dir, number).items():
            begin = 0 if number in earlier else newest.begin(number, rank, path)
            if begin is not None:
                begins[number, rank] = begin
    return begins


def _begins_since(run: Run, numbers: list[int], since: float) -> dict[tuple[int, int], int]:
    """Return where to begin reading each log: at its length of the time `since`, or at its end if not written since.

    Returns:
        Byte offset by (attempt, rank).
    """
    begins = {}
    for attempt in numbers:
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
    """Print the lines of one attempt, rank by rank.

    Args:
        run: the run.
        ranks: the ranks to show; empty for all.
        attempt: number of the attempt.
        begins: byte offset by (attempt, rank) to begin at; a log without an entry is not shown.
        strict: refuse a rank without a log, instead of skipping the rank.

    Returns:
        The number of lines printed.

    Raises:
        Cannot: a rank has no log, and `strict` is set.
    """
    known = {rank: path for rank, path in logs_of(run.log_dir, attempt).items() if (attempt, rank) in begins}
    unknown = [rank for rank in ranks if rank not in known]
    if unknown and strict:
        listed = ", ".join(map(str, known)) or "none"
        raise Cannot(f"cannot show rank {unknown[0]} of attempt {attempt}: it has no log; those with one: {listed}")
    several = len(ranks or known) > 1
    lines = 0
    for rank in [rank for rank in ranks or known if rank in known]:
        for line in LogReader(known[rank], begins[attempt, rank]).read(last=True):
            _print(rank, line, several=several)
            lines += 1
    return lines


def _where(numbers: list[int], since: float | None) -> str:
    if since is None:
        return f"in attempt {numbers[0]}"
    return "since " + datetime.fromtimestamp(since).strftime("%Y-%m-%d %H:%M:%S")


def _follow(run: Run, newest: NewestRun, ranks: tuple[int, ...], since: float | None) -> int:
    """Print lines as they come, until the job ends. Return the exit code of the command."""
    own = newest.attempts()
    begins = {}
    if since is not None:
        begins = _begins_since(run, [*newest.earlier(), *own], since)
        for number in newest.earlier():
            _show(run, ranks, attempt=number, begins=begins, strict=False)
    first = 0 if since is not None or not own else own[-1]
    follower = Follower(newest, run.log_dir, ranks, attempt=first, begins=begins)
    several = len(ranks) != 1 and run.start.get("ranks") != 1
    end = end_of_supervisor(run)
    over = False
    try:
        while not over:
            over = _is_over(run, end)  # before the read, so that the last read sees all output
            for rank, line in follower.read(last=over):
                _print(rank, line, several=several)
            sys.stdout.flush()
    except KeyboardInterrupt:
        return say_that_it_goes_on(run)
    return 0


def _is_over(run: Run, end: int | None) -> bool:
    """Wait up to 0.2 seconds for the end of the job. Return whether the job has ended.

    The journal tells the end of a job whose supervisor runs on another machine.
    """
    if end is not None:
        return is_readable(end, _POLL_SECONDS)
    if run.elsewhere:
        time.sleep(_POLL_SECONDS)
        return run.reload().end is not None
    return True


def _print(rank: int, line: str, *, several: bool) -> None:
    click.echo(f"[{rank}] {printable(line)}" if several else printable(line))
