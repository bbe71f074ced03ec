"""A journal that is read as a whole, followed as it grows, or searched from its end; torn, damaged, or another one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.ctl import started

from ftlaunch.history import journal as journal_module
from ftlaunch.history.journal import NEWEST, JournalFollower
from ftlaunch.history.runs import CannotFind, NoJournal, load, load_newest


def line(number: int) -> bytes:
    return json.dumps({"event": "progress", "step": number}).encode() + b"\n"


def steps(tail: JournalFollower) -> list[int]:
    return [event["step"] for event in tail.events()]


def append(run_dir: Path, *pieces: bytes) -> None:
    with (run_dir / "events.jsonl").open("ab") as file:
        file.write(b"".join(pieces))


def test_only_what_was_appended_is_told(tmp_path: Path) -> None:
    tail = JournalFollower(tmp_path, on_replaced=lambda: pytest.fail("it is the same journal"))
    append(tmp_path, line(1), line(2))
    assert steps(tail) == [1, 2]
    assert steps(tail) == []
    append(tmp_path, line(3))
    assert steps(tail) == [3]


def test_a_line_is_told_when_its_end_is_there(tmp_path: Path) -> None:
    tail = JournalFollower(tmp_path)
    whole = line(7)
    append(tmp_path, line(6), whole[:9])
    assert steps(tail) == [6]
    append(tmp_path, whole[9:])
    assert steps(tail) == [7]


def test_torn_and_strange_lines_are_passed_over(tmp_path: Path) -> None:
    tail = JournalFollower(tmp_path)
    torn = [b'{"event": "progr\n', b"[1]\n", b"\xff\xfe\n", b"{}\n", b"[" * 100_000 + b"\n", b"\n"]
    append(tmp_path, *torn, line(1))
    assert steps(tail) == [1]


def test_another_journal_in_its_place_is_told_from_its_beginning(tmp_path: Path) -> None:
    replaced: list[int] = []
    tail = JournalFollower(tmp_path, on_replaced=lambda: replaced.append(tail.offset))
    append(tmp_path, line(1), line(2), b"{\n")
    assert steps(tail) == [1, 2]
    assert tail.dropped.total() == 1
    (tmp_path / "new").write_bytes(line(5))
    (tmp_path / "new").rename(tmp_path / "events.jsonl")
    assert steps(tail) == [5]
    assert replaced == [0]
    assert tail.dropped.total() == 0
    (tmp_path / "events.jsonl").write_bytes(b"")
    assert steps(tail) == []
    append(tmp_path, line(6))
    assert steps(tail) == [6]
    assert len(replaced) == 2


def test_another_journal_in_the_same_inode_is_another_one(tmp_path: Path) -> None:
    """Taken out: of a run dir that was made anew the first line was passed over."""
    tail = JournalFollower(tmp_path)
    append(tmp_path, line(1))
    assert steps(tail) == [1]
    (tmp_path / "events.jsonl").write_bytes(line(2) + line(3))  # the same inode, and longer
    assert steps(tail) == [2, 3]


def test_a_deleted_journal_is_an_error_unless_it_is_kept(tmp_path: Path) -> None:
    """The supervisor of a run dir that was deleted goes on to write. Taken out: its metrics stood still."""
    kept, other = JournalFollower(tmp_path, keeps_deleted=True), JournalFollower(tmp_path)
    append(tmp_path, line(1))
    assert steps(kept) == steps(other) == [1]
    with (tmp_path / "events.jsonl").open("ab") as file:
        (tmp_path / "events.jsonl").unlink()
        file.write(line(2))
    assert steps(kept) == [2]
    with pytest.raises(FileNotFoundError):
        steps(other)
    append(tmp_path, line(3))
    assert steps(kept) == steps(other) == [3]
    kept.close()


def test_only_events_of_the_wanted_names_are_told(tmp_path: Path) -> None:
    tail = JournalFollower(tmp_path, ["resumed", "job_started"])
    nested = b'{"of": {"event": "progress"}, "event":"resumed", "step": 4}\n'
    other = b'{"of": {"event": "resumed"}, "event": "incident"}\n'
    append(tmp_path, line(1), nested, other, b'{"event" : "job_started", "step": 5}\n')
    assert steps(tail) == [4, 5]


def test_a_line_that_is_too_long_takes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "BLOCK", 10)
    monkeypatch.setattr(journal_module, "LONGEST_LINE", 100)
    tail = JournalFollower(tmp_path)
    append(tmp_path, b'{"event": "progress", "step": 0, "x": "', b"y" * 1000)
    assert steps(tail) == []
    append(tmp_path, b'"}\n', line(1), line(2))
    assert steps(tail) == [1, 2]


def test_no_journal_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        steps(JournalFollower(tmp_path))


def test_lines_that_hold_no_event_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "BLOCK", 10)
    monkeypatch.setattr(journal_module, "LONGEST_LINE", 100)
    tail = JournalFollower(tmp_path)
    append(tmp_path, line(1), b"{torn\n", b"\n", b"[1]\n", b'{"event": 1}\n', b"x" * 1000, b"\n", line(2), b'{"ev')
    assert steps(tail) == [1, 2]
    assert tail.dropped == {"torn": 1, "no event": 2, "too long": 1}


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
    monkeypatch.setattr(journal_module.os, "pread", lambda *args: read.append(args[1]) or pread(*args))
    run = load_newest(tmp_path, is_any_start_enough=True)
    assert (run.start["t"], run.end) == ("1", STOPPED)
    assert sum(read) < NEWEST + (1 << 18)


def test_of_an_ended_run_the_start_is_its_own_where_that_is_asked_for(tmp_path: Path) -> None:
    pages = [PAGE] * (NEWEST // (64 << 10) * 2)
    journal(tmp_path, started("a", t="1"), *pages, started("a", t="2"), *pages, STOPPED)
    assert load_newest(tmp_path).start["t"] == "2"
    assert load_newest(tmp_path, is_any_start_enough=True).start["t"] == "1"


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
