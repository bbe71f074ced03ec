"""Has report.html written when a run ends, by a process of its own, and waits for it, but not for long."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ftlaunch.common.formatting import duration
from ftlaunch.policy.states import JobState
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.helper_process import PIPE, HelperProcesses, module

PAGE = "report.html"
PATIENCE = 30.0
"""seconds that the end of a run waits for its page: a month's page takes less than ten"""
PATIENCE_AT_STOP = 5.0
"""the same where somebody has asked the job to stop: the machine may be taken away soon"""


def page_at_end(helpers: HelperProcesses, spec: JobSpec, state: JobState, *, storage_answers: bool) -> str:
    """Have the page written; returns a sentence on where it is, or on why there is none, or nothing if it is off."""
    if not spec.report_page:
        return ""
    page = spec.run_dir / PAGE
    if not storage_answers:
        return f"{_no_page(page)}: storage does not answer; {_by_hand(spec.run_dir)}"
    patience = PATIENCE_AT_STOP if state is JobState.STOPPED else PATIENCE
    try:
        writer = helpers.start(module("ftlaunch.report_page", str(spec.run_dir)), stderr=PIPE)
    except OSError as error:
        return f"{_no_page(page)}: {error.strerror}; {_by_hand(spec.run_dir)}"
    try:
        _, said = writer.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        writer.end()
        return f"{_no_page(page)}: it takes longer than {duration(patience)}; {_by_hand(spec.run_dir)}"
    if writer.returncode == 0:
        return f"the report for a browser is {page}"
    last = said.decode(errors="replace").strip().rpartition("\n")[2]
    why = last or f"its process ended with exit status {writer.returncode}"
    return f"{_no_page(page)}: {why}; {_by_hand(spec.run_dir)}"


def _no_page(page: Path) -> str:
    return f"cannot write {page}"


def _by_hand(run_dir: Path) -> str:
    return f"`ftctl report {run_dir} --html` tries again"
