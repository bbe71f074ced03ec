"""Has report.html written when a run ends, by a process of its own, and waits for it, but not for long.

A page tells of a job that has ended. When the run goes on it is put aside under another name: `report.html` never says
"stopped" of a job that runs. It is not removed: should this run come to a sudden end, the last page is still there.
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

PAGE, PUT_ASIDE = "report.html", "report.before.html"
PATIENCE = 30.0
"""seconds that the end of a run waits for its page: a month's page takes less than ten"""
PATIENCE_AT_STOP = 5.0
"""the same where somebody has asked the job to stop: the machine may be taken away soon"""


def put_page_aside(run_dir: Path) -> str:
    """A run begins: the page of the run before gets another name; returns a sentence where that cannot be done."""
    page, aside = run_dir / PAGE, run_dir / PUT_ASIDE
    try:
        if page.is_file():
            page.replace(aside)
    except OSError as error:
        return f"cannot rename {page} to {aside.name}: {error.strerror}; it tells of the run before, and stays"
    return ""


def page_at_end(helpers: HelperProcesses, spec: JobSpec, state: JobState, *, storage_answers: bool) -> str:
    """Have the page written; returns a sentence on where it is, or on why there is none, or nothing if it is off."""
    if not spec.report_page:
        return ""
    page = spec.run_dir / PAGE
    if not storage_answers:
        return f"{_no_page(page)}: storage does not answer; {_by_hand(spec.run_dir)}"
    patience = PATIENCE_AT_STOP if state is JobState.STOPPED else PATIENCE
    try:
        writer = helpers.start(module(REPORT_PAGE, str(spec.run_dir)), stderr=PIPE)
    except OSError as error:
        return f"{_no_page(page)}: {error.strerror}; {_by_hand(spec.run_dir)}"
    try:
        _, said = writer.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        writer.end()
        return f"{_no_page(page)}: it takes longer than {duration(patience)}; {_by_hand(spec.run_dir)}"
    if writer.returncode == 0:
        with contextlib.suppress(OSError):  # an older page that stays says by its name that it is
            (spec.run_dir / PUT_ASIDE).unlink()
        return f"the report for a browser is {page}"
    last = said.decode(errors="replace").strip().rpartition("\n")[2]
    why = last or f"its process ended with exit status {writer.returncode}"
    return f"{_no_page(page)}: {why}; {_by_hand(spec.run_dir)}"


def _no_page(page: Path) -> str:
    return f"cannot write {page}"


def _by_hand(run_dir: Path) -> str:
    return f"`ftctl report {run_dir} --html` tries again"
