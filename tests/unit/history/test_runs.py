"""Every command that reads a run answers with what it can tell, or with one sentence, whatever the journal says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.ctl import ftctl, journal, started

from ftlaunch.history import job_index
from ftlaunch.history.job_index import KnownJob

MISSING = object()
ODD = [MISSING, None, [1], {"a": 1}, "text", "", -1, 1 << 70, 1.5, True, float("nan"), "a\0b"]
COMMANDS = (
    ("status", "night"), ("status", "night", "--json"), ("report", "night"), ("report", "night", "--json"),
    ("logs", "night"), ("logs", "night", "-f"), ("attach", "night"), ("jobs",), ("jobs", "--json"), ("stop", "night"),
    ("plan", "--gpus", "8", "--run", "night"), ("checkpoints", "night"), ("clean", "night"), ("nodes", "night"),
    ("top", "night"), ("report", "runs"),
)  # fmt: skip
START = started("night", log_dir="/nowhere", checkpoint_dir="/nowhere", host="", ranks=2, command=["train.py"],
                killed_at={"step": 3, "ago": 1.0}, max_restarts=3)  # fmt: skip
MIDDLE = {"event": "incident", "rank": 1, "kind": "killed", "sentence": "it fell", "cause": "x", "verdict": "restart",
          "since_progress": 0.5, "step": 3, "autopsy": None}  # fmt: skip
OTHERS = [
    {"event": "attempt_started", "pids": [1], "port": 1, "hosts": ["a"]},
    {"event": "resumed", "step": 0, "source": "memory", "steps_lost": 0, "seconds": 1.0},
    {"event": "progress", "step": 2},
    {"event": "checkpoint_committed", "step": 2, "bytes": 5, "seconds": 1.0, "why": "request"},
    MIDDLE,
    {"event": "recovered", "step": 4, "seconds": 2.0},
    {"event": "rank_exited", "rank": 0, "step": 5},
    {"event": "stop_requested", "by": "ftctl"},
    {"event": "stop_announced", "front": 6},
]
TWICE = [START, *OTHERS, {"event": "job_stopped", "code": 75, "step": 5}, START, *OTHERS]
ENDS = [
    {"event": "job_stopped", "code": 75, "step": 12},
    {"event": "job_finished", "code": 0, "restarts": 1},
    {"event": "job_failed", "code": 1, "cause": "x", "sentence": "it fell"},
]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    job_index.add(KnownJob("night", str(tmp_path / "runs/night")))


def assert_all_answer(home: Path) -> dict[tuple[str, ...], tuple[int, str, str]]:
    """Assert that each command ends with what it can tell, or with one sentence. Return what each has said."""
    found = {words: ftctl(*words, cwd=home) for words in COMMANDS}
    for words, (code, out, err) in found.items():
        said = f"ftctl {' '.join(words)}: {code}, {out}, {err}"
        assert code in (0, 1, 2), said
        assert "Traceback" not in out + err, said
        assert not err or err.startswith("ftctl: "), said
        assert err.count("\n") <= 1, said
        assert "no answer" not in out, said
    return found


def without(event: dict[str, Any], field: str, odd: object) -> dict[str, Any]:
    changed = {**event, field: odd}
    if odd is MISSING:
        del changed[field]
    return changed


FIELDS = [
    *((START, name) for name in START if name != "event"),
    *((end, name) for end in ENDS for name in list(end)[1:]),
]


@pytest.mark.long
@pytest.mark.parametrize(("event", "field"), FIELDS, ids=lambda one: one if isinstance(one, str) else one["event"])
def test_every_command_answers_whatever_starts_and_ends_hold(event: dict[str, Any], field: str, tmp_path: Path) -> None:
    for number, odd in enumerate(ODD):
        if field == "host" and isinstance(odd, str):
            continue  # a host like any other: `ftctl logs -f` waits for the end of its job
        home = tmp_path / str(number)
        changed = without(event, field, odd)
        events = [changed, *OTHERS] if event is START else [START, *OTHERS, changed]
        journal(home / "runs" / "night", *events)
        job_index.add(KnownJob("night", str(home / "runs/night")))
        assert_all_answer(home)


@pytest.mark.long
@pytest.mark.parametrize("event", [START, *OTHERS], ids=lambda one: one["event"])
def test_odd_fields_of_other_events(event: dict[str, Any], tmp_path: Path) -> None:
    for number, odd in enumerate(ODD):
        for field in [name for name in event if name != "event"]:
            events = [
                without(one, field, odd) if one is event else one for one in [START, *OTHERS, ENDS[0], START, *OTHERS]
            ]
            run_dir = tmp_path / f"{number}-{field}" / "runs" / "night"
            journal(run_dir, *events)
            for words in (("report", "night"), ("plan", "--gpus", "8", "--run", "night"), ("report", "runs")):
                code, _, err = ftctl(*words, cwd=run_dir.parent.parent)
                assert code in (0, 1, 2), (words, odd, field)
                assert err.count("\n") <= 1


def test_a_damaged_run_has_a_row_that_says_why(tmp_path: Path) -> None:
    """Before: a traceback, and `no answer`; without job_started it was left out."""
    journal(tmp_path / "runs/night", without(START, "job_id", MISSING))
    said = assert_all_answer(tmp_path)
    row = next(row for row in json.loads(said["jobs", "--json"][1]) if row["job_id"] == "night")
    assert row["state"] == "damaged"
    assert row["problem"].endswith("events.jsonl: `job_id` of its job_started is missing; text is needed")
    assert said["status", "night"][2].startswith("ftctl: cannot read the run: runs/night/events.jsonl: `job_id`")
    (tmp_path / "runs/night/events.jsonl").write_text("{}\nnothing\n")
    row = next(row for row in json.loads(assert_all_answer(tmp_path)["jobs", "--json"][1]) if row["job_id"] == "night")
    assert (row["state"], row["running"]) == ("damaged", False)
    assert row["problem"].endswith("events.jsonl does not say that a job was started")


@pytest.mark.parametrize("kind", ["fifo", "directory", "link to nothing", "link to itself", "empty"])
def test_what_is_no_journal(kind: str, tmp_path: Path) -> None:
    """A FIFO without a writer held up every command for good."""
    path = tmp_path / "runs/night/events.jsonl"
    path.parent.mkdir(parents=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    else:
        path.symlink_to("nothing" if kind == "link to nothing" else path)
    said = assert_all_answer(tmp_path)
    assert said["status", "night"][0] == 2
    if kind != "link to nothing":
        assert '"night"' in said["jobs", "--json"][1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything: run as another user")
def test_a_run_dir_that_may_not_be_read(tmp_path: Path) -> None:
    run_dir = journal(tmp_path / "runs/night", START)
    run_dir.chmod(0)
    try:
        said = assert_all_answer(tmp_path)
        assert "permission denied" in said["status", "night"][2]
        assert '"unreadable"' in said["jobs", "--json"][1]
    finally:
        run_dir.chmod(0o700)


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000, "", ".", "..", "/", "\x1b[31m", "/dev/null", "/etc/shadow/x"])
def test_names_that_cannot_be_runs(name: str, tmp_path: Path) -> None:
    for words in (("status", name), ("logs", name), ("stop", name), ("report", name), ("checkpoints", name)):
        code, out, err = ftctl(*words, cwd=tmp_path)
        assert code in (0, 1, 2)
        assert err.count("\n") <= 1
        assert "\x1b" not in out + err
