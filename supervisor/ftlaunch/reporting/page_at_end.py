"""Writes report.html at the end of a run: starts a process for the page, and waits for this process, but not for long.

A page describes a job that has ended. At the start of the next run the page gets another name, so that `report.html`
never says "stopped" about a job that runs. The old page is kept until a new one is written, in case this run ends
suddenly. Called by `engine/main.py` and the head of several nodes, in the main thread.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from ftlaunch.common.formatting import duration
from ftlaunch.extensions import REPORT_PAGE
from ftlaunch.policy.states import JobState
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.helper_process import PIPE, HelperProcesses
from ftlaunch.system.own_modules import module

PAGE = "report.html"
PUT_ASIDE = "report.before.html"
PATIENCE_SECONDS = 30.0
"""seconds that the end of a run waits for its page; the page of a run of one month takes less than ten"""
PATIENCE_AT_STOP_SECONDS = 5.0
"""seconds that a job which was asked to stop waits for its page, as the machine may be taken away soon"""


def put_page_aside(run_dir: Path) -> str:
    """Rename the page of the run before; return a warning if this fails, else ""."""
    page = run_dir / PAGE
    aside = run_dir / PUT_ASIDE
    try:
        if page.is_file():
            page.replace(aside)
    except OSError as error:
        return f"cannot rename {page} to {aside.name}: {error.strerror}; it tells of the run before, and stays"
    return ""


def page_at_end(helpers: HelperProcesses, spec: JobSpec, state: JobState, *, storage_answers: bool) -> str:
    """Have the page of an ended run written, and wait for it.

    Args:
        helpers: starts the process.
        spec: the job.
        state: how the job has ended.
        storage_answers: whether the run dir may be written to; if not, no page is tried.

    Returns:
        A sentence on where the page is, or why there is none; "" if the job wants no page.
    """
    if not spec.report_page:
        return ""
    page = spec.run_dir / PAGE
    if not storage_answers:
        return f"{_no_page(page)}: storage does not answer; {_by_hand(spec.run_dir)}"
    patience = PATIENCE_AT_STOP_SECONDS if state is JobState.STOPPED else PATIENCE_SECONDS
    try:
        writer = helpers.start(module(REPORT_PAGE, str(spec.run_dir)), stderr=PIPE)
    except OSError as error:
        return f"{_no_page(page)}: {error.strerror}; {_by_hand(spec.run_dir)}"
    try:
        _, errors = writer.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        writer.end()
        return f"{_no_page(page)}: it takes longer than {duration(patience)}; {_by_hand(spec.run_dir)}"
    if writer.returncode == 0:
        with contextlib.suppress(OSError):  # an old page that cannot be removed is known by its name
            (spec.run_dir / PUT_ASIDE).unlink()
        return f"the report for a browser is {page}"
    last_line = errors.decode(errors="replace").strip().rpartition("\n")[2]
    why = last_line or f"its process ended with exit status {writer.returncode}"
    return f"{_no_page(page)}: {why}; {_by_hand(spec.run_dir)}"


def _no_page(page: Path) -> str:
    return f"cannot write {page}"


def _by_hand(run_dir: Path) -> str:
    return f"`ftctl report {run_dir} --html` tries again"
