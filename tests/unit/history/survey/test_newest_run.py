"""What the ends of a journal say of its newest run, however long the journal is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.ctl import started

from ftlaunch.history.runs import CannotFind, NoJournal, load
from ftlaunch.history.survey import newest_run
from ftlaunch.history.survey.newest_run import NEWEST, load_newest

PAGE = {"event": "progress", "step": 1, "text": "x" * (64 << 10)}
STOPPED = {"event": "job_stopped", "code": 75, "step": 12}


def journal(run_dir: Path, *events: dict[str, Any] | str) -> Path:
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    (run_dir / "events.jsonl").write_text("\n".join(lines) + "\n")
    return run_dir


@pytest.mark.parametrize(
    "events",
    [
        [started("a", t="1"), {"event": "progress", "step": 3}, {"event": "incident", "sentence": "it fell"}],
        [started("a", t="1"), STOPPED, {"event": "notified"}],
        [started("a", t="1"), {"event": "rank_exited", "step": 3}, {**STOPPED, "step": -1}],
        [started("a", t="1"), STOPPED, started("a", t="2")],
        [started("a", t="1"), *[PAGE] * 3, {"event": "incident"}, *[PAGE] * 3, STOPPED],
        [started("a", t="1"), STOPPED, *[PAGE] * 3, started("a", t="2"), *[PAGE] * 3],
        [
            started("a", t="1"),
            "torn {",
            '{"event": "incident", "sentence": "\\"job_started\\""}',
            '"job_started"',
            "[]",
        ],
        [started("a", t="1"), {"event": "progress", "step": None}, {"event": "progress", "step": "x"}],
        [started("a", t="1"), {"event": "notified", "of": {"event": "job_started"}}, {"event": ["job_started"]}],
    ],
)
def test_it_is_what_the_whole_journal_says(events: list[dict[str, Any] | str], tmp_path: Path) -> None:
    whole, newest = load(journal(tmp_path, *events)), load_newest(tmp_path)
    assert newest.start == whole.start
    assert newest.end == whole.end
    kept = [event for event in whole.events if event in newest.events]
    assert kept[-1] in newest.events
    incidents = [[e for e in run.events if e["event"] == "incident"][-1:] for run in (whole, newest)]
    assert incidents[0] == incidents[1]


def test_of_an_open_run_the_start_is_found_wherever_it_stands(tmp_path: Path) -> None:
    pages = [PAGE] * (NEWEST // (64 << 10) + 3)
    journal(tmp_path, started("a", t="1"), *pages, started("a", t="2"), *pages, *pages)
    assert load_newest(tmp_path).start["t"] == "2"


def test_of_an_ended_run_little_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the limit every journal of every job was read as a whole."""
    pages = [PAGE] * (NEWEST // (64 << 10) * 3)
    journal(tmp_path, started("a", t="1"), *pages, STOPPED)
    read: list[int] = []
    monkeypatch.setattr(newest_run.os, "pread", lambda *args: read.append(args[1]) or pread(*args))
    run = load_newest(tmp_path)
    assert (run.start["t"], run.end) == ("1", STOPPED)
    assert sum(read) < NEWEST + (1 << 18)


pread = os.pread


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(NoJournal):
        load_newest(tmp_path)
    os.mkfifo(tmp_path / "events.jsonl")
    for read in (load_newest, load):
        with pytest.raises(CannotFind, match=r"events\.jsonl: it is no regular file"):
            read(tmp_path)
    (tmp_path / "events.jsonl").unlink()
    (tmp_path / "events.jsonl").mkdir()
    for read in (load_newest, load):
        with pytest.raises(CannotFind, match=r"events\.jsonl: is a directory"):
            read(tmp_path)
