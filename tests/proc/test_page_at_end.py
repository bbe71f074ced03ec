"""The end of a run waits for its page, but not for long; what becomes of the page of the run before."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.support.ctl import journal, started

from ftlaunch.common.formatting import duration
from ftlaunch.policy.states import JobState
from ftlaunch.reporting.page_at_end import PATIENCE_AT_STOP_SECONDS, PATIENCE_SECONDS, page_at_end, put_page_aside
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.helper_process import HelperProcesses


def spec_of(home: Path) -> JobSpec:
    (home / "train.py").touch()
    return resolve(str(home / "train.py"), [], {"run_dir": str(home / "run"), "job_id": "j"}, {})


@pytest.mark.parametrize(
    ("state", "patience"),
    [
        (JobState.STOPPED, PATIENCE_AT_STOP_SECONDS),
        pytest.param(JobState.DONE, PATIENCE_SECONDS, marks=pytest.mark.slow),
    ],
)
def test_a_page_that_takes_too_long_is_given_up(tmp_path: Path, state: JobState, patience: float) -> None:
    """Its journal is a hole of 4 TiB, in which no line ends. Taken out (the limit): the run waited for hours."""
    spec = spec_of(tmp_path)
    spec.run_dir.mkdir()
    (spec.run_dir / "events.jsonl").touch()
    os.truncate(spec.run_dir / "events.jsonl", 4 << 40)
    began, before = time.monotonic(), set(Path("/proc").glob("[0-9]*"))
    said = page_at_end(HelperProcesses(), spec, state, storage_answers=True)
    assert patience <= time.monotonic() - began
    assert said == (
        f"cannot write {spec.run_dir}/report.html: it takes longer than {duration(patience)};"
        f" `ftctl report {spec.run_dir} --html` tries again"
    )
    left = [path for path in set(Path("/proc").glob("[0-9]*")) - before if str(spec.run_dir) in words_of(path)]
    assert left == []


def words_of(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it is gone


def test_where_storage_does_not_answer_nobody_waits(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    said = page_at_end(HelperProcesses(), spec, JobState.DONE, storage_answers=False)
    assert "storage does not answer" in said


def test_a_page_that_fails_leaves_that_of_the_run_before(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    spec.run_dir.mkdir()
    (spec.run_dir / "report.html").write_text("of the run before")
    assert put_page_aside(spec.run_dir) == ""
    assert "No such file" in page_at_end(HelperProcesses(), spec, JobState.DONE, storage_answers=True)
    assert [path.name for path in spec.run_dir.iterdir()] == ["report.before.html"]


def test_a_new_page_takes_the_place_of_both(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    journal(spec.run_dir, started())
    (spec.run_dir / "report.html").write_text("of the run before")
    assert put_page_aside(spec.run_dir) == ""
    assert "the report for a browser is" in page_at_end(HelperProcesses(), spec, JobState.DONE, storage_answers=True)
    assert sorted(path.name for path in spec.run_dir.iterdir()) == ["events.jsonl", "report.html"]


def test_a_page_that_cannot_be_renamed_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "report.html").touch()
    (tmp_path / "report.before.html").mkdir()
    assert put_page_aside(tmp_path) == (
        f"cannot rename {tmp_path}/report.html to report.before.html: Is a directory;"
        " it tells of the run before, and stays"
    )
