"""A journal that grows, is torn, or is another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.common.line_splitter import LineSplitter
from ftlaunch.views.dashboard import growing_journal
from ftlaunch.views.dashboard.growing_journal import FollowedJournal, GrowingJournal


def line(number: int) -> bytes:
    return json.dumps({"event": "progress", "step": number}).encode() + b"\n"


def steps(tail: GrowingJournal) -> list[int]:
    return [event["step"] for event in tail.appended()]


def append(run_dir: Path, *pieces: bytes) -> None:
    with (run_dir / "events.jsonl").open("ab") as file:
        file.write(b"".join(pieces))


def test_only_what_was_appended_is_told(tmp_path: Path) -> None:
    tail = GrowingJournal(tmp_path)
    append(tmp_path, line(1), line(2))
    assert steps(tail) == [1, 2]
    assert steps(tail) == []
    append(tmp_path, line(3))
    assert steps(tail) == [3]
    assert tail.files == 1


def test_a_line_is_told_when_its_end_is_there(tmp_path: Path) -> None:
    tail = GrowingJournal(tmp_path)
    whole = line(7)
    append(tmp_path, line(6), whole[:9])
    assert steps(tail) == [6]
    append(tmp_path, whole[9:])
    assert steps(tail) == [7]


def test_torn_and_strange_lines_are_passed_over(tmp_path: Path) -> None:
    tail = GrowingJournal(tmp_path)
    torn = [b'{"event": "progr\n', b"[1]\n", b"\xff\xfe\n", b"{}\n", b"[" * 100_000 + b"\n", b"\n"]
    append(tmp_path, *torn, line(1))
    assert steps(tail) == [1]


def test_another_journal_in_its_place_is_told_from_its_beginning(tmp_path: Path) -> None:
    tail = GrowingJournal(tmp_path)
    append(tmp_path, line(1), line(2))
    assert steps(tail) == [1, 2]
    (tmp_path / "new").write_bytes(line(5))
    (tmp_path / "new").rename(tmp_path / "events.jsonl")
    assert steps(tail) == [5]
    assert tail.files == 2
    (tmp_path / "events.jsonl").write_bytes(b"")
    assert steps(tail) == []
    append(tmp_path, line(6))
    assert steps(tail) == [6]
    assert tail.files == 3


def test_another_journal_in_the_same_inode_is_another_one(tmp_path: Path) -> None:
    """Taken out: of a run dir that was made anew the first line was passed over."""
    tail = GrowingJournal(tmp_path)
    append(tmp_path, line(1))
    assert steps(tail) == [1]
    (tmp_path / "events.jsonl").write_bytes(line(2) + line(3))  # the same inode, and longer
    assert steps(tail) == [2, 3]
    assert tail.files == 2


def test_a_line_that_is_too_long_takes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_journal, "_BLOCK", 10)
    monkeypatch.setattr(growing_journal, "LineSplitter", lambda: LineSplitter(100))
    tail = GrowingJournal(tmp_path)
    append(tmp_path, b'{"event": "progress", "step": 0, "x": "', b"y" * 1000)
    assert steps(tail) == []
    append(tmp_path, b'"}\n', line(1), line(2))
    assert steps(tail) == [1, 2]


def test_no_journal_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        steps(GrowingJournal(tmp_path))


class Steps:
    """Notes the steps that it hears; cannot hear one of them, at first."""

    def __init__(self, hooked: bool) -> None:
        self.hooked, self.resumed = hooked, False
        self.heard: list[int] = []

    def hear(self, event: dict[str, Any]) -> None:
        self.resumed = self.resumed or event["event"] == "resumed"
        if event["step"] == -1:
            raise ArithmeticError
        self.heard.append(event["step"])


def test_after_a_failure_all_is_heard_again(tmp_path: Path) -> None:
    """Taken out: the events that were read before the failure were never heard of again."""
    followed = FollowedJournal(tmp_path, Steps)
    append(tmp_path, line(1))
    assert followed.read()
    append(tmp_path, line(2), line(-1), line(3))
    for _ in range(2):
        with pytest.raises(ArithmeticError):
            followed.read()
    (tmp_path / "events.jsonl").write_bytes(b"".join(map(line, (1, 2, 4))))
    assert followed.read()
    assert followed.heard.heard == [1, 2, 4]
    assert followed.state.step == 4
    assert not followed.read()


def test_of_another_journal_nothing_of_the_first_is_left(tmp_path: Path) -> None:
    followed = FollowedJournal(tmp_path, Steps)
    append(tmp_path, line(1))
    followed.read()
    (tmp_path / "new").write_bytes(line(5))
    (tmp_path / "new").rename(tmp_path / "events.jsonl")
    assert followed.read()
    assert followed.heard.heard == [5]


def test_a_first_resume_has_all_heard_again(tmp_path: Path) -> None:
    followed = FollowedJournal(tmp_path, Steps)
    append(tmp_path, line(1))
    followed.read()
    append(tmp_path, json.dumps({"event": "resumed", "step": 2}).encode() + b"\n", line(3))
    assert followed.read()
    assert (followed.heard.hooked, followed.heard.heard) == (True, [1, 2, 3])


def test_lines_that_hold_no_event_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_journal, "_BLOCK", 10)
    monkeypatch.setattr(growing_journal, "LineSplitter", lambda: LineSplitter(100))
    tail = GrowingJournal(tmp_path)
    append(tmp_path, line(1), b"{torn\n", b"\n", b"[1]\n", b'{"event": 1}\n', b"x" * 1000, b"\n", line(2), b'{"ev')
    assert steps(tail) == [1, 2]
    assert tail.dropped == {"torn": 1, "no event": 2, "too long": 1}
