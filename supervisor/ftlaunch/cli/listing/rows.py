"""What `ftctl jobs` says of each job: read from its supervisor, its memory, and the ends of its journal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch.history.job_index import KnownJob, forget_if_gone, known_jobs
from ftlaunch.history.runs import CannotFind, DamagedJournal, NoJournal, Run, runs_without_dir
from ftlaunch.history.survey.newest_run import load_newest, tells_a_step
from ftlaunch.history.survey.patience import look_at_all
from ftlaunch.memory.cleanup import job_dirs
from ftlaunch.memory.directory import APART, read_places
from ftlaunch.memory.living_jobs import LivingJob, living_jobs
from ftlaunch.system.control_socket import SOCKET, ask
from ftlaunch_contract.protocol import memory_root

_STATES = {"job_finished": "done", "job_stopped": "stopped", "job_failed": "failed"}
_NO_ANSWER, _DAMAGED, _UNREADABLE = "no answer", "damaged", "unreadable"


@dataclass(frozen=True)
class JobRow:
    """What `ftctl jobs` says of a job."""

    job_id: str
    state: str
    """of a running job what its supervisor says; else done, stopped, failed, killed; damaged, unreadable, no answer"""
    running: bool
    step: int | None
    started: str
    incident: str
    run_dir: str
    problem: str = ""
    """why the job is not told of as usual: its run dir was deleted, or its journal is damaged"""


@dataclass(frozen=True)
class _Candidate:
    """A run dir that is known, and the processes here whose memory belongs to it."""

    job: KnownJob
    living: Sequence[LivingJob]


def all_rows() -> list[JobRow]:
    """A row for each job of this user; a run dir whose storage does not answer holds up no other."""
    candidates = _candidates()
    found = look_at_all(candidates, _look)
    silent = ([JobRow(c.job.job_id, _NO_ANSWER, bool(c.living), None, "", "", c.job.run_dir)] for c in candidates)
    return [row for rows, silence in zip(found, silent, strict=True) for row in (silence if rows is None else rows)]


def _candidates() -> list[_Candidate]:
    """Those of the index, and those that have memory here: a home may not have taken a note."""
    living: dict[str, list[LivingJob]] = {}
    for job in living_jobs():
        living.setdefault(job.places.run_dir, []).append(job)
    found = {job.run_dir: job for job in known_jobs()}
    for memory in job_dirs(memory_root(os.getuid())):
        places = read_places(memory)
        if places is not None:
            found.setdefault(places.run_dir, KnownJob(memory.name.partition(APART)[0], places.run_dir))
    return [_Candidate(job, living.get(job.run_dir, ())) for job in found.values()]


def _look(candidate: _Candidate) -> list[JobRow]:
    job, run_dir = candidate.job, Path(candidate.job.run_dir)
    rows = [_row_without_dir(run) for run in runs_without_dir(candidate.living)]
    try:
        return [*rows, row_of(load_newest(run_dir))]
    except DamagedJournal as damage:
        return [*rows, _row_of_trouble(job, _DAMAGED, str(damage))]
    except NoJournal:
        if not candidate.living:
            forget_if_gone(job)
        return rows
    except CannotFind as reason:
        return [*rows, _row_of_trouble(job, _UNREADABLE, str(reason))]


def _row_of_trouble(job: KnownJob, state: str, problem: str) -> JobRow:
    return JobRow(job.job_id, state, False, None, "", "", job.run_dir, problem)


def _row_without_dir(run: Run) -> JobRow:
    status = _ask(run)
    state, step = ("running", None) if status is None else (str(status["state"]), _common_step(status))
    return JobRow(run.job_id, state, True, step, "", _last_incident(status), str(run.run_dir), f"its {run.lost}")


def row_of(run: Run) -> JobRow:
    """The row of a run: what its supervisor says where it runs here, else what its journal says. Raises CannotFind."""
    start, end, job_id = run.start, run.end, run.job_id
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
    told = state, running, step, str(start.get("t", "")), incident or _last_incident(status)
    return JobRow(job_id, *told, str(run.run_dir))


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
    """The step that the ranks had reached when the journal's last word of it was written."""
    return next((int(event["step"]) for event in events[::-1] if tells_a_step(event)), None)
