"""The command `ftctl jobs`: all jobs of this user, running and past."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from ftlaunch.common.formatting import printable, table
from ftlaunch.history.job_index import KnownJob, forget_if_gone, known_jobs
from ftlaunch.history.runs import CannotFind, Run, load
from ftlaunch.memory.cleanup import job_dirs
from ftlaunch.memory.directory import read_places
from ftlaunch.system.control_socket import SOCKET, ask
from ftlaunch_contract.protocol import memory_root

_PATIENCE = 5.0  # seconds for all run dirs together
_WIDEST = 60  # characters of an incident
_STATES = {"job_finished": "done", "job_stopped": "stopped", "job_failed": "failed"}
_NO_ANSWER = "no answer"


@dataclass(frozen=True)
class JobRow:
    """What `ftctl jobs` says of a job."""

    job_id: str
    state: str
    """of a running job what its supervisor says; else done, stopped, failed, killed; or `no answer`"""
    running: bool
    step: int | None
    started: str
    incident: str
    run_dir: str


@click.command(short_help="List all jobs of this user, running and past.")
@click.option("--running", "only_running", is_flag=True, help="only those that run")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def jobs(only_running: bool, as_json: bool) -> int:
    """List all jobs of this user, running and past, the newest first.

    A job is known from its first start on, in whatever folder that was, until its run dir is deleted.
    """
    rows = [row for row in _rows(_known()) if row.running or not only_running]
    rows.sort(key=lambda row: row.started, reverse=True)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=1))
    elif rows:
        click.echo("\n".join(map(printable, table([_HEAD, *map(_cells, rows)], left=(0, 1, 3, 4, 5)))))
    else:
        click.echo("no job is running" if only_running else "no jobs are known")
    return 0


def _known() -> list[KnownJob]:
    """Those of the index, and those that have memory here: a home may not have taken a note."""
    found = {job.run_dir: job for job in known_jobs()}
    for memory in job_dirs(memory_root(os.getuid())):
        places = read_places(memory)
        if places is not None:
            found.setdefault(places.run_dir, KnownJob(memory.name, places.run_dir))
    return list(found.values())


def _rows(known: Sequence[KnownJob]) -> list[JobRow]:
    """A thread for each: storage that does not answer holds up one row, and not the others."""
    found: dict[str, JobRow | None] = {}

    def look(job: KnownJob) -> None:
        try:
            found[job.run_dir] = row_of(load(Path(job.run_dir)))
        except CannotFind:
            found[job.run_dir] = None
            forget_if_gone(job)

    threads = [threading.Thread(target=look, args=(job,), daemon=True) for job in known]
    deadline = time.monotonic() + _PATIENCE
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    silent = (JobRow(job.job_id, _NO_ANSWER, False, None, "", "", job.run_dir) for job in known)
    return [row for row in (found.get(silence.run_dir, silence) for silence in silent) if row is not None]


def row_of(run: Run) -> JobRow:
    """The row of a run: what its supervisor says where it runs here, else what its journal says. Raises CannotFind."""
    start, end = run.start, run.end
    status = _ask(run) if end is None and run.alive else None
    step = _newest_step(run.events) if status is None else _common_step(status)
    if end is not None:
        state = _STATES[str(end["event"])]
    elif status is not None:
        state = str(status["state"])
    else:
        state = f"on {run.elsewhere}" if run.elsewhere else "running" if run.alive or run.agents else "killed"
    incident = next((str(event.get("sentence", "")) for event in run.events[::-1] if event["event"] == "incident"), "")
    running = end is None and state != "killed"
    return JobRow(run.job_id, state, running, step, str(start.get("t", "")), incident, str(run.run_dir))


def _ask(run: Run) -> dict[str, Any] | None:
    try:
        answer = ask(run.memory_dir / SOCKET, {"do": "status"}, timeout=1.0)
    except (OSError, ValueError):
        return None
    return answer if answer.get("ok") else None


def _common_step(status: Mapping[str, Any]) -> int | None:
    step = min((int(rank["step"]) for rank in status["ranks"]), default=-1)
    return step if step >= 0 else None


def _newest_step(events: Sequence[Mapping[str, Any]]) -> int | None:
    """The step that the ranks had reached when the journal's last word of it was written."""
    for event in events[::-1]:
        if event["event"] in ("progress", "recovered", "resumed", "rank_exited", "checkpoint_committed", "job_stopped"):
            step = event.get("step")
            if isinstance(step, int) and step >= 0:
                return step
    return None


_HEAD = ("job", "state", "step", "started", "run dir", "last incident")


def _cells(row: JobRow) -> tuple[str, ...]:
    incident = row.incident if len(row.incident) <= _WIDEST else row.incident[: _WIDEST - 3] + "..."
    step = "-" if row.step is None else str(row.step)
    return row.job_id, row.state, step, _local(row.started), row.run_dir, incident


def _local(stamp: str) -> str:
    try:
        return datetime.fromisoformat(stamp.replace("Z", "+00:00")).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return "-"
