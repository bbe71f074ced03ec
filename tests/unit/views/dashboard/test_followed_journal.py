"""What is built from a journal that grows, cannot be heard, or is another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.views.dashboard.followed_journal import FollowedJournal


def line(number: int) -> bytes:
    return json.dumps({"event": "progress", "step": number}).encode() + b"\n"


def append(run_dir: Path, *pieces: bytes) -> None:
    with (run_dir / "events.jsonl").open("ab") as file:
        file.write(b"".join(pieces))


class Steps:
    """Notes the steps of the events; cannot process one of them, at first."""

    def __init__(self, hooked: bool) -> None:
        self.hooked, self.resumed = hooked, False
        self.steps: list[int] = []

    def apply(self, event: dict[str, Any]) -> None:
        self.resumed = self.resumed or event["event"] == "resumed"
        if event["step"] == -1:
            raise ArithmeticError
        self.steps.append(event["step"])


def test_after_a_failure_all_is_processed_again(tmp_path: Path) -> None:
    """Taken out: the events that were read before the failure were never processed again."""
    followed = FollowedJournal(tmp_path, Steps)
    append(tmp_path, line(1))
    assert followed.read()
    append(tmp_path, line(2), line(-1), line(3))
    for _ in range(2):
        with pytest.raises(ArithmeticError):
            followed.read()
    (tmp_path / "events.jsonl").write_bytes(b"".join(map(line, (1, 2, 4))))
    assert followed.read()
    assert followed.consumer.steps == [1, 2, 4]
    assert followed.state.step == 4
    assert not followed.read()


def test_of_another_journal_nothing_of_the_first_is_left(tmp_path: Path) -> None:
    followed = FollowedJournal(tmp_path, Steps)
    append(tmp_path, line(1))
    followed.read()
    (tmp_path / "new").write_bytes(line(5))
    (tmp_path / "new").rename(tmp_path / "events.jsonl")
    assert followed.read()
    assert followed.consumer.steps == [5]


def test_a_first_resume_has_all_heard_again(tmp_path: Path) -> None:
    followed = FollowedJournal(tmp_path, Steps)
    append(tmp_path, line(1))
    followed.read()
    append(tmp_path, json.dumps({"event": "resumed", "step": 2}).encode() + b"\n", line(3))
    assert followed.read()
    assert (followed.consumer.hooked, followed.consumer.steps) == (True, [1, 2, 3])
