"""The command `ftctl logs`: shows what the ranks of a job have printed, or follows their output.

The command only reads the log files, the notes of their lengths, and the journal. Logs of nodes that share no run dir
with this machine are fetched through the head of the job (unshared_logs.py). Positions in logs are byte offsets, kept
in mappings from (attempt, rank).
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from datetime import datetime

import click

from ftlaunch.cli.asking import NO, Cannot, end_of_supervisor, say_that_it_goes_on
from ftlaunch.cli.terminal.completion import complete_run
from ftlaunch.cli.terminal.unshared_logs import UnsharedLogs
from ftlaunch.common.durations import parse_duration
from ftlaunch.common.formatting import printable
from ftlaunch.history.rank_logs import LocalLogs, Log, LogReader
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
    the newest run is shown; --since and --attempt show the runs before it, too.

    Lines have no times: every 10 seconds it is noted how long the logs are, so --since shows up to 10 seconds more than
    was asked for, and of jobs with hundreds of ranks some minutes more.
    """
    if follow and attempt is not None:
        raise click.UsageError("--follow and --attempt exclude each other: an attempt that is over prints nothing more")
    run = find(name)
    try:
        apart = UnsharedLogs.of(run, name, ranks)
        places = LocalLogs(run.log_dir) if apart is None else apart
        view = _View(run, NewestRun(run.run_dir, places), ranks=ranks, apart=apart)
        view.newest.read_journal()
        if follow:
            return _follow(view, since=since)
        numbers = _attempts_to_show(view, attempt=attempt, since=since)
        strict = len(numbers) == 1
        if not sum(_show(view, attempt=number, since=since, strict=strict) for number in numbers):
            nothing = f"the ranks of job {run.job_id} have printed nothing {_where(numbers, since)}"
            click.echo(f"ftctl: {nothing}", err=True)
    except BrokenPipeError:
        raise  # the reader of the pipe has gone, which is no error of the job
    except OSError as error:
        raise Cannot(f"cannot show logs of job {run.job_id}: {error.filename}: {error.strerror}") from error
    return NO if apart is not None and apart.has_failed else 0


class _View:
    """What is shown of a job's logs, and from where."""

    def __init__(self, run: Run, newest: NewestRun, ranks: tuple[int, ...], apart: UnsharedLogs | None) -> None:
        """Begin without a line.

        Args:
            run: the run.
            newest: the attempts of the newest run, with their logs.
            ranks: the ranks to show; empty for all.
            apart: the logs on nodes that share no run dir; None: all logs lie in the log folder of the job.
        """
        self.run = run
        self.newest = newest
        self.ranks = ranks
        self.apart = apart
        self._named: set[tuple[str, int, int]] = set()  # place, attempt and rank of which it was said where they are

    def logs_of(self, attempt: int) -> dict[int, Log]:
        """Return the logs to choose from of an attempt, by rank. Raises OSError."""
        return self.newest.logs_of(attempt)

    def say_missing(self, attempt: int) -> None:
        """Say which ranks of an attempt have their logs on nodes that cannot be asked."""
        if self.apart is not None:
            hosts = self.newest.hosts(attempt)
            self.apart.say_missing(attempt, hosts, self.ranks, self.logs_of(attempt))

    def show(self, log: Log, line: str, *, several: bool) -> None:
        """Print a line; before the first one of a rank from another node, say which node it is."""
        key = (log.folder.place, log.folder.attempt, log.rank)
        if self.apart is not None and key not in self._named:
            self._named.add(key)
            sys.stdout.flush()
            click.echo(f"ftctl: rank {log.rank} of attempt {log.folder.attempt}: from {log.folder.place}", err=True)
        click.echo(f"[{log.rank}] {printable(line)}" if several else printable(line))


def _attempts_to_show(view: _View, attempt: int | None, since: float | None) -> list[int]:
    """Return the numbers of the attempts to show, those of earlier runs first.

    Raises:
        Cannot: there is no such attempt, or none at all.
    """
    run = view.run
    newest = view.newest
    there = sorted({*newest.earlier(), *newest.attempts()})
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


def _begin(view: _View, log: Log, since: float | None, begins_since: Begins) -> int | None:
    """Return where to begin reading a log, in bytes; None if the newest run has written nothing to the log yet.

    A log of an attempt that only earlier runs had begins at 0. Raises OSError.
    """
    if since is not None:
        return begins_since.get((log.folder.attempt, log.rank), 0)
    return 0 if log.folder.attempt in view.newest.earlier() else view.newest.begin(log)


def _begins_since(view: _View, numbers: list[int], since: float) -> dict[tuple[int, int], int]:
    """Return where to begin reading each log: at its length of the time `since`, or at its end if not written since.

    Returns:
        Byte offset by (attempt, rank).

    Raises:
        OSError: a log cannot be read.
    """
    begins = {}
    for attempt in numbers:
        by_place: dict[str, Mapping[int, int]] = {}
        for rank, log in view.logs_of(attempt).items():
            folder = log.folder
            if folder.place not in by_place:
                by_place[folder.place] = folder.begins_since(since)
            begins[attempt, rank] = by_place[folder.place].get(rank, 0)
    return begins


def _show(view: _View, attempt: int, since: float | None, *, strict: bool) -> int:
    """Print the lines of one attempt, rank by rank.

    Args:
        view: what is shown.
        attempt: number of the attempt.
        since: show only what was printed since then, in seconds of the epoch; None for all.
        strict: refuse a rank without a log, instead of skipping the rank.

    Returns:
        The number of lines printed.

    Raises:
        Cannot: a rank has no log, and `strict` is set.
        OSError: a log cannot be read.
    """
    begins_since = {} if since is None else _begins_since(view, [attempt], since)
    begins: dict[int, int] = {}
    known = view.logs_of(attempt)
    for rank, log in known.items():
        if (begin := _begin(view, log, since, begins_since)) is not None:
            begins[rank] = begin
    view.say_missing(attempt)
    unknown = [rank for rank in view.ranks if rank not in begins]
    if unknown and strict:
        listed = ", ".join(map(str, begins)) or "none"
        raise Cannot(f"cannot show rank {unknown[0]} of attempt {attempt}: it has no log; those with one: {listed}")
    several = len(view.ranks or begins) > 1
    lines = 0
    for rank in [rank for rank in view.ranks or begins if rank in begins]:
        log = known[rank]
        for line in LogReader(begins[rank]).read(log.read, last=True, gap_reason=log.folder.gap_reason):
            view.show(log, line, several=several)
            lines += 1
    return lines


def _where(numbers: list[int], since: float | None) -> str:
    if since is None:
        return f"in attempt {numbers[0]}"
    return "since " + datetime.fromtimestamp(since).strftime("%Y-%m-%d %H:%M:%S")


def _follow(view: _View, since: float | None) -> int:
    """Print lines as they come, until the job ends. Return the exit code of the command."""
    run = view.run
    newest = view.newest
    own = newest.attempts()
    begins = {}
    if since is not None:
        begins = _begins_since(view, own, since)
        for number in newest.earlier():
            _show(view, attempt=number, since=since, strict=False)
    first = 0 if since is not None or not own else own[-1]
    follower = Follower(newest, view.ranks, attempt=first, begins=begins)
    several = len(view.ranks) != 1 and run.start.get("ranks") != 1
    end = end_of_supervisor(run)
    over = False
    try:
        while not over:
            over = _is_over(view, end)  # before the read, so that the last read sees all output
            for log, line in follower.read(last=over):
                view.show(log, line, several=several)
            sys.stdout.flush()
    except KeyboardInterrupt:
        return say_that_it_goes_on(run)
    return 0


def _is_over(view: _View, end: int | None) -> bool:
    """Wait up to 0.2 seconds for the end of the job. Return whether the job has ended.

    The journal tells the end of a job whose supervisor runs on another machine. Where nodes share no run dir, the head
    tells that no more lines will come, and waits a moment for those who follow, because the nodes end with the job.
    """
    run = view.run
    if view.apart is not None:
        time.sleep(_POLL_SECONDS)
        return view.apart.ask_whether_over()
    if end is not None:
        return is_readable(end, _POLL_SECONDS)
    if run.elsewhere:
        time.sleep(_POLL_SECONDS)
        return run.reload().end is not None
    return True
