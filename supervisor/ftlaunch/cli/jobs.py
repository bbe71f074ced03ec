"""The command `ftctl jobs`: all jobs of this user, running and past. Nothing here changes a job.

A row comes from the job's supervisor, its memory on this machine, and the beginning and end of its journal. Run dirs
are read on helper threads, so that storage that does not answer holds up no other job.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from ftlaunch.common.formatting import fitted, printable, table
from ftlaunch.history.events import has_step
from ftlaunch.history.job_index import KnownJob, forget_if_gone, known_jobs
from ftlaunch.history.runs import CannotFind, DamagedJournal, NoJournal, Run, load_newest, runs_without_dir
from ftlaunch.memory.cleanup import job_dirs
from ftlaunch.memory.directory import APART, read_places
from ftlaunch.memory.living_jobs import LivingJob, living_jobs
from ftlaunch.system.control_socket import SOCKET, ask
from ftlaunch.system.patience import call_for_all
from ftlaunch_contract.protocol import memory_root

_STATES = {"job_finished": "done", "job_stopped": "stopped", "job_failed": "failed"}
_NO_ANSWER = "no answer"
_DAMAGED = "damaged"
_UNREADABLE = "unreadable"
_LEFT_ALIGNED = (0, 1, 3, 4, 5)  # columns with text


@click.command(short_help="List all jobs of this user, running and past.")
@click.option("--running", "only_running", is_flag=True, help="only those that run")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def jobs(only_running: bool, as_json: bool) -> int:
    """List all jobs of this user, running and past, the newest first.

    A job is known from its first start on, in whatever folder that was, until its run dir is deleted and it has ended.
    On a terminal long cells are cut in their middle; in a pipe they are whole.
    """
    rows = [row for row in all_rows() if row.running or not only_running]
    rows.sort(key=lambda row: row.started, reverse=True)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=1))
    elif rows:
        click.echo("\n".join(job_lines(rows, _width())))
    else:
        click.echo("no job is running" if only_running else "no jobs are known")
    return 0


def _width() -> int | None:
    """Return the columns of the terminal; None in a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


# --- the rows -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobRow:
    """A row of `ftctl jobs`. The field names are the keys of `ftctl jobs --json`."""

    job_id: str
    state: str
    """the supervisor's state of a running job; else done, stopped, failed, killed, damaged, unreadable, no answer"""
    running: bool
    step: int | None
    """the newest step that all ranks have completed; None if unknown"""
    started: str
    """ISO 8601 time of the start in UTC; empty if unknown"""
    incident: str
    """the sentence of the last incident; empty if there was none"""
    run_dir: str
    problem: str = ""
    """why fields are missing: the run dir was deleted, or the journal is damaged"""


@dataclass(frozen=True)
class _Candidate:
    """A known run dir, and the processes on this machine whose memory belongs to the run dir."""

    job: KnownJob
    living: Sequence[LivingJob]


def all_rows() -> list[JobRow]:
    """Return at least one row for each job of this user, in no particular order."""
    candidates = _candidates()
    rows: list[JobRow] = []
    for candidate, found in zip(candidates, call_for_all(candidates, _rows_of), strict=True):
        if found is None:
            rows.append(_row_without_journal(candidate.job, _NO_ANSWER, running=bool(candidate.living)))
        else:
            rows += found
    return rows


def _candidates() -> list[_Candidate]:
    """Return the jobs of the user's index, and the jobs with memory on this machine, which the index may lack."""
    living: dict[str, list[LivingJob]] = {}
    for job in living_jobs():
        living.setdefault(job.places.run_dir, []).append(job)
    found = {job.run_dir: job for job in known_jobs()}
    for memory in job_dirs(memory_root(os.getuid())):
        places = read_places(memory)
        if places is not None:
            found.setdefault(places.run_dir, KnownJob(memory.name.partition(APART)[0], places.run_dir))
    return [_Candidate(job, living.get(job.run_dir, ())) for job in found.values()]


def _rows_of(candidate: _Candidate) -> list[JobRow]:
    """Read the rows of one run dir: its newest run, and runs whose directory was deleted under them."""
    job = candidate.job
    run_dir = Path(job.run_dir)
    rows = [_row_without_dir(run) for run in runs_without_dir(candidate.living)]
    try:
        return [*rows, row_of(load_newest(run_dir, is_any_start_enough=True))]
    except DamagedJournal as damage:
        return [*rows, _row_without_journal(job, _DAMAGED, problem=str(damage))]
    except NoJournal:
        if not candidate.living:
            forget_if_gone(job)
        return rows
    except CannotFind as reason:
        return [*rows, _row_without_journal(job, _UNREADABLE, problem=str(reason))]


def _row_without_journal(job: KnownJob, state: str, *, running: bool = False, problem: str = "") -> JobRow:
    return JobRow(
        job_id=job.job_id,
        state=state,
        running=running,
        step=None,
        started="",
        incident="",
        run_dir=job.run_dir,
        problem=problem,
    )


def _row_without_dir(run: Run) -> JobRow:
    status = _ask(run)
    return JobRow(
        job_id=run.job_id,
        state="running" if status is None else str(status["state"]),
        running=True,
        step=None if status is None else _common_step(status),
        started="",
        incident=_last_incident(status),
        run_dir=str(run.run_dir),
        problem=f"its {run.lost}",
    )


def row_of(run: Run) -> JobRow:
    """Return the row of a run: from its supervisor if that answers on this machine, else from the journal.

    Raises:
        CannotFind: the run cannot be read.
    """
    start = run.start
    end = run.end
    status = _ask(run) if end is None and run.alive else None
    step = _newest_step(run.events) if status is None else _common_step(status)
    if end is not None:
        state = _STATES[str(end["event"])]
    elif status is not None:
        state = str(status["state"])
    elif run.elsewhere:
        state = f"on {run.elsewhere}"
    else:
        state = "running" if run.alive or run.agents else "killed"
    incident = next((str(event.get("sentence", "")) for event in run.events[::-1] if event["event"] == "incident"), "")
    return JobRow(
        job_id=run.job_id,
        state=state,
        running=end is None and state != "killed",
        step=step,
        started=str(start.get("t", "")),
        incident=incident or _last_incident(status),
        run_dir=str(run.run_dir),
    )


def _ask(run: Run) -> dict[str, Any] | None:
    try:
        answer = ask(run.memory_dir / SOCKET, {"do": "status"}, timeout=1.0)
    except (OSError, ValueError):
        return None
    return answer if answer.get("ok") else None


def _last_incident(status: Mapping[str, Any] | None) -> str:
    last = None if status is None else status.get("last_incident")
    return str(last["sentence"]) if last else ""


def _common_step(status: Mapping[str, Any]) -> int | None:
    step = min((int(rank["step"]) for rank in status["ranks"]), default=-1)
    return step if step >= 0 else None


def _newest_step(events: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the newest step in the journal; None if no event of the journal's end names a step."""
    return next((int(event["step"]) for event in events[::-1] if has_step(event)), None)


# --- the table ------------------------------------------------------------------------------------------------


def job_lines(rows: Sequence[JobRow], width: int | None) -> list[str]:
    """Return a heading and a line for each row.

    Args:
        rows: the jobs, in the order of the lines.
        width: columns of the terminal, to which long cells are cut; None for no cutting.
    """
    stamps = [stamp for row in rows if (stamp := _local(row.started)) is not None]
    zone = f" ({stamps[0]:%Z})" if stamps else ""
    cells = [
        ("job", "state", "step", f"started{zone}", "run dir", "last incident or problem"),
        *map(_cells, rows),
    ]
    cells = [tuple(map(printable, row)) for row in cells]
    return table(cells if width is None else fitted(cells, width), left=_LEFT_ALIGNED)


def _cells(row: JobRow) -> tuple[str, ...]:
    step = "-" if row.step is None else str(row.step)
    stamp = _local(row.started)
    started = "-" if stamp is None else f"{stamp:%Y-%m-%d %H:%M}"
    return row.job_id, row.state, step, started, row.run_dir, row.problem or row.incident


def _local(stamp: str) -> datetime | None:
    """Convert a journal's time to this machine's time zone; None if the time cannot be parsed."""
    try:
        return datetime.fromisoformat(stamp.replace("Z", "+00:00")).astimezone()
    except (ValueError, OverflowError, OSError):
        return None
