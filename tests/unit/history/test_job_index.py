"""The index of a user's jobs: what is noted, found again, and forgotten."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.support.ctl import ftctl, journal, started

from ftlaunch.history import job_index
from ftlaunch.history.job_index import KnownJob, forget_if_gone, known_jobs


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/ftlaunch/jobs"


def noted(job_id: str, run_dir: Path) -> KnownJob:
    job = KnownJob(job_id, str(run_dir))
    job_index.add(job)
    return job


def test_a_run_dir_has_one_file_whatever_its_job_is_called(tmp_path: Path, state: Path) -> None:
    noted("a", tmp_path / "run")
    job = noted("b", tmp_path / "run")
    other = noted("b", tmp_path / "other")
    assert sorted(known_jobs(), key=lambda one: one.run_dir) == sorted([job, other], key=lambda one: one.run_dir)
    assert state.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("home", ["", "relative/path"])
def test_without_a_usable_variable_it_lies_in_the_home(home: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", home)
    monkeypatch.setenv("HOME", str(tmp_path))
    noted("a", tmp_path / "run")
    assert len(list((tmp_path / ".local/state/ftlaunch/jobs").iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"[]", b'{"job_id": 1', b'{"job_id": "a"}', b"\xff"])
def test_a_file_that_is_no_note_is_passed_over(content: bytes, tmp_path: Path, state: Path) -> None:
    job = noted("a", tmp_path / "run")
    (state / "other.json").write_bytes(content)
    assert known_jobs() == [job]


def test_a_deleted_run_dir_is_forgotten_and_one_that_is_not_mounted_is_not(tmp_path: Path, state: Path) -> None:
    there, gone, away = (noted(name, tmp_path / name) for name in ("there", "gone", "away/run"))
    journal(tmp_path / "there", started("there"))
    for job in (there, gone, away):
        forget_if_gone(job)
    assert {job.job_id for job in known_jobs()} == {"there", "away/run"}
    for path in state.iterdir():
        os.utime(path, (1, 1))
    for job in (there, away):
        forget_if_gone(job)
    assert known_jobs() == [there]


def test_ftctl_finds_a_job_by_its_id_from_anywhere(tmp_path: Path) -> None:
    noted("far", journal(tmp_path / "far/away", started("far"), {"event": "job_finished", "code": 0}))
    assert ftctl("status", "far", cwd=tmp_path)[1].startswith("job far is not running: done (exit code 0); ")
    noted("far", journal(tmp_path / "far/other", started("far")))
    code, _, err = ftctl("status", "far", cwd=tmp_path)
    assert code == 2
    assert "2 jobs have the id far; name a run dir: " in err


def test_the_list_says_how_each_job_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    incident = {"event": "incident", "sentence": "rank 1\x1b[31m was killed " + "x" * 99}
    noted("a", journal(tmp_path / "a", started("a"), {"event": "progress", "step": 7}, incident))
    noted("b", journal(tmp_path / "b", started("b"), {"event": "job_stopped", "code": 75, "step": 12}))
    noted("c", tmp_path / "c")
    nothing = {"event": "job_stopped", "code": 143, "step": -1}
    noted("d", journal(tmp_path / "d", started("d"), {"event": "rank_exited", "step": 5}, nothing))
    code, out, err = ftctl("jobs", cwd=tmp_path)
    assert (code, err) == (0, "")
    head, *rows = [line for line in out.splitlines() if str(tmp_path) in line or line.startswith("job ")]
    assert head.split() == [
        *["job", "state", "step", "started", "(UTC)", "run", "dir", "last", "incident", "or", "problem"]
    ]
    assert sorted(row.split()[:3] for row in rows) == [
        ["a", "killed", "7"], ["b", "stopped", "12"], ["d", "stopped", "5"],
    ]  # fmt: skip
    assert "rank 1\\x1b[31m was killed xxx" in out
    assert ftctl("jobs", "--running", cwd=tmp_path)[1].count(str(tmp_path)) == 0
    assert {job.job_id for job in known_jobs()} == {"a", "b", "d"}


def test_each_note_forgets_some_whose_run_dirs_are_gone(tmp_path: Path) -> None:
    """So the index does not grow without end where nobody lists jobs."""
    kept = [noted("kept", journal(tmp_path / f"kept{number}", started("kept"))) for number in range(20)]
    for number in range(80):
        noted("gone", tmp_path / f"gone{number}")
    job_index.prune()
    assert sorted(job.run_dir for job in known_jobs()) == sorted(job.run_dir for job in kept)


def test_a_job_that_is_not_found_has_a_name_that_may_be_meant(tmp_path: Path) -> None:
    noted("night", journal(tmp_path / "far/away", started("night"), {"event": "job_finished", "code": 0}))
    code, _, err = ftctl("logs", "nigth", cwd=tmp_path)
    assert code == 2
    assert "no job is called nigth, and there is no events.jsonl in nigth or runs/nigth; did you mean `night`?" in err
    assert err.endswith("; `ftctl jobs` lists your jobs\n")
    assert "did you mean" not in ftctl("logs", "nope", cwd=tmp_path)[2]
