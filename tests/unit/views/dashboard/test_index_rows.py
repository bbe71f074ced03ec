"""The rows of all jobs of a directory."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.history import goodput
from ftlaunch.history import journal as journal_module
from ftlaunch.history.journal import read_events
from ftlaunch.history.runs import runs_in
from ftlaunch.history.timeline import moments
from ftlaunch.views.dashboard import index_rows
from ftlaunch.views.dashboard.index_rows import IndexRows
from ftlaunch_contract.protocol import process_start_time

ME = {"pid": os.getpid(), "start_time": process_start_time(os.getpid())}
GONE = {"pid": 1, "start_time": 0}


def write(run_dir: Path, *events: dict[str, Any]) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / "events.jsonl"
    seconds = path.read_bytes().count(b"\n") if path.exists() else 0
    with path.open("a") as file:
        for number, event in enumerate(events, seconds):
            stamp = f"2031-01-02T03:{number // 60:02d}:{number % 60:02d}.000Z"
            file.write(json.dumps({"t": stamp, "mono": number, "attempt": 0, **event}) + "\n")


def started(job_id: str = "j", **more: Any) -> dict[str, Any]:
    return {"event": "job_started", "job_id": job_id, "ranks": 2, "memory_dir": "/nowhere", **ME, **more}


def incident(sentence: str, step: int = 3) -> dict[str, Any]:
    return {"event": "incident", "rank": 1, "kind": "killed", "sentence": sentence, "verdict": "restart", "step": step}


def rows_of(rows: IndexRows) -> dict[str, Mapping[str, Any]]:
    return {row["name"]: row for row in rows.update()["rows"]}


@pytest.fixture
def rows(tmp_path: Path) -> IndexRows:
    return IndexRows(lambda: {path.name: path for path in runs_in(tmp_path)})


def test_a_row_says_state_step_goodput_and_the_last_incident(tmp_path: Path, rows: IndexRows) -> None:
    write(tmp_path / "a", started(), {"event": "attempt_started"}, {"event": "resumed", "step": 0})
    assert rows_of(rows)["a"]["state"] == "running"
    write(
        tmp_path / "a",
        {"event": "progress", "step": 1},
        {"event": "progress", "step": 2},
        incident("rank 1 <b>died</b>"),
    )
    row = rows_of(rows)["a"]
    assert (row["step"], row["incidents"], row["incident"]) == (2, 1, "rank 1 <b>died</b>")
    write(tmp_path / "a", {"event": "stop_requested", "by": "dashboard of x, asked from 127.0.0.1"})
    row = rows_of(rows)["a"]
    assert (row["state"], row["sentence"]) == ("stopping", "told to stop: dashboard of x, asked from 127.0.0.1")
    write(tmp_path / "a", {"event": "job_stopped", "code": 75, "step": 2})
    assert rows_of(rows)["a"]["state"] == "stopped"
    write(tmp_path / "a", started(), {"event": "attempt_started"}, {"event": "resumed", "step": 2})
    row = rows_of(rows)["a"]
    assert (row["state"], row["incidents"]) == ("running", 1), "what was forgotten at the end is read again"


def test_goodput_is_that_of_the_report_whatever_is_kept(tmp_path: Path, rows: IndexRows) -> None:
    write(tmp_path / "a", started(), {"event": "attempt_started"}, {"event": "resumed", "step": 0})
    for step in range(1, 40):
        write(tmp_path / "a", {"event": "progress", "step": step})
        rows_of(rows)
    write(tmp_path / "a", incident("x", 39), {"event": "resumed", "step": 35}, {"event": "recovered", "step": 36})
    story = goodput.build_story(moments(read_events(tmp_path / "a")))
    assert story.steps_lost
    assert rows_of(rows)["a"]["goodput"] == story.effective


def test_a_killed_supervisor_is_told(tmp_path: Path, rows: IndexRows) -> None:
    write(tmp_path / "a", started(**GONE))
    row = rows_of(rows)["a"]
    assert (row["state"], "killed?" in row["sentence"]) == ("killed", True)


def test_a_job_of_another_host_is_not_judged(tmp_path: Path, rows: IndexRows) -> None:
    write(tmp_path / "a", started(host="elsewhere", **GONE))
    row = rows_of(rows)["a"]
    assert row["state"] == "running"
    assert "cannot be seen from here" in row["sentence"]


def test_bad_journals_are_rows_too(tmp_path: Path, rows: IndexRows) -> None:
    write(tmp_path / "empty")
    write(tmp_path / "headless", {"event": "progress", "step": 4})
    write(tmp_path / "strange", {"event": "job_started", "pid": "x", "ranks": "many", "job_id": ["\x1b[31m"]})
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "events.jsonl").write_text('{"event": "job_sta')
    (tmp_path / "folder" / "events.jsonl").mkdir(parents=True)
    found = rows_of(rows)
    assert {name: row["state"] for name, row in found.items()} == {
        "empty": "unknown", "headless": "unknown", "strange": "unknown", "torn": "unknown", "folder": "unreadable",
    }  # fmt: skip
    assert "is a directory" in found["folder"]["sentence"]
    assert "\x1b" not in json.dumps(found, ensure_ascii=False)


def test_one_bad_run_dir_keeps_no_other_away(tmp_path: Path, rows: IndexRows) -> None:
    """Taken out, one by one: a name that is no text and a step that is no number were TypeErrors, and no row was told;
    a FIFO (opened without O_NONBLOCK) held the index for ever."""
    write(tmp_path / "good", started())
    write(tmp_path / "nameless", started(), {"event": []}, {"event": None})
    for number, step in enumerate((None, "x", [], {}, 1e300)):
        write(tmp_path / f"stopped{number}", started(), {"event": "job_stopped", "code": 75, "step": step})
    (tmp_path / "fifo").mkdir()
    os.mkfifo(tmp_path / "fifo/events.jsonl")
    (tmp_path / "link").mkdir()
    (tmp_path / "link/events.jsonl").symlink_to(tmp_path / "good/events.jsonl")
    found = rows_of(rows)
    assert (found["good"]["state"], found["nameless"]["state"]) == ("running", "running")
    assert {found[f"stopped{number}"]["state"] for number in range(5)} == {"stopped"}
    assert "does not say which step" in found["stopped0"]["sentence"]
    assert (found["fifo"]["state"], found["link"]["state"]) == ("unreadable", "unreadable")
    assert "it is no regular file" in found["fifo"]["sentence"]
    assert "it is a symbolic link" in found["link"]["sentence"]


def test_a_name_that_is_no_text_has_a_link_all_the_same(tmp_path: Path, rows: IndexRows) -> None:
    write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff%")), started())
    (row,) = rows.update()["rows"]
    assert (row["name"], row["link"]) == ("a\ufffd%", "run/a%FF%25/")
    json.dumps(row, ensure_ascii=False).encode()


@pytest.mark.slow
def test_a_long_journal_takes_the_room_of_a_short_one(tmp_path: Path, rows: IndexRows) -> None:
    """Taken out (all events were kept): 228 MiB for 100,000 lines, and all of them were told again at each line."""
    write(tmp_path / "a", started(), {"event": "attempt_started"}, {"event": "resumed", "step": 0})
    rows_of(rows)
    tracemalloc.start()
    write(tmp_path / "a", *({**incident("x" * 200, step), "step": step} for step in range(20_000)))
    while (row := rows_of(rows)["a"])["state"] == "reading":
        pass
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert row["incidents"] == 20_000
    assert kept < 1 << 20, "bytes"
    assert most < 40 << 20, "bytes; a journal is read in pieces"


def test_a_long_journal_keeps_no_other_row_away(
    tmp_path: Path, rows: IndexRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken out (a portion a look): the first look took a minute for a million lines, and no row was told meanwhile."""
    monkeypatch.setattr(journal_module, "BLOCK", 1000)
    monkeypatch.setattr(index_rows, "PORTION", 1000)
    write(tmp_path / "a", started(), *({"event": "progress", "step": step} for step in range(200)))
    write(tmp_path / "b", started("b"))
    found = rows_of(rows)
    assert (found["a"]["state"], found["b"]["state"]) == ("reading", "running")
    assert found["a"]["sentence"] == "its journal is long: 0 of 0 MiB are read"
    looks = 1
    while (row := rows_of(rows)["a"])["state"] == "reading":
        looks += 1
    assert looks > 5
    assert (row["state"], row["step"], row["job_id"]) == ("running", 199, "j")


def test_run_dirs_come_and_go(tmp_path: Path, rows: IndexRows) -> None:
    write(tmp_path / "a", started())
    assert list(rows_of(rows)) == ["a"]
    write(tmp_path / "b", started())
    (tmp_path / "a" / "events.jsonl").unlink()
    assert list(rows_of(rows)) == ["b"]


def test_a_directory_that_cannot_be_listed_keeps_the_rows(tmp_path: Path) -> None:
    def fails() -> Mapping[str, Path]:
        raise PermissionError(13, "Permission denied")

    assert IndexRows(fails).update() == {"trouble": "cannot list the directory: permission denied"}
