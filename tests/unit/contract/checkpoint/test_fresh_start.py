"""Which commands with --fresh begin anew, and which go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch_contract.checkpoint import fresh_start
from ftlaunch_contract.checkpoint.fresh_start import Command, FreshStart

COMMAND = Command("script", "train.py", ("--lr", "3"), load="")
OTHERS = {
    "other arguments": Command("script", "train.py", ("--lr", "4"), load=""),
    "other script": Command("script", "other.py", ("--lr", "3"), load=""),
    "module": Command("module", "train.py", ("--lr", "3"), load=""),
    "other checkpoint": Command("script", "train.py", ("--lr", "3"), load="elsewhere"),
    "words that look alike": Command("script", "train.py", ("--lr 3",), load=""),
}


def decide(directory: Path, command: Command = COMMAND, *, is_asked: bool = True) -> tuple[FreshStart, list[str]]:
    said: list[str] = []
    return fresh_start.decide(directory, command, is_asked=is_asked, say=said.append), said


def begin(directory: Path) -> str:
    fresh, said = decide(directory)
    assert fresh.is_fresh
    assert not said
    fresh_start.note_beginning(directory, COMMAND, fresh.run)
    return fresh.run


def test_the_same_command_goes_on_until_its_end(tmp_path: Path) -> None:
    run = begin(tmp_path)
    for _ in range(2):
        fresh, (sentence,) = decide(tmp_path)
        assert fresh == FreshStart(is_asked=True, is_fresh=False, run=run)
        assert sentence.startswith("--fresh is for the first run of a command: this one began anew on 2")
        assert sentence.endswith(f"so it goes on; to begin anew once more, remove {tmp_path / 'fresh.json'}")
    assert fresh_start.unfinished_run(tmp_path, COMMAND) == run
    fresh_start.note_end(tmp_path)
    assert fresh_start.unfinished_run(tmp_path, COMMAND) == ""
    assert begin(tmp_path) != run


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_another_command_begins_anew(other: Command, tmp_path: Path) -> None:
    begin(tmp_path)
    assert decide(tmp_path, other)[0].is_fresh
    assert fresh_start.unfinished_run(tmp_path, other) == ""


def test_a_start_without_the_option_makes_the_next_one_with_it_a_first_one(tmp_path: Path) -> None:
    begin(tmp_path)
    assert decide(tmp_path, is_asked=False) == (FreshStart(is_asked=False, is_fresh=False), [])
    begin(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"command": 1, "began": 2, "run": 3}', "\0", "[" * 100_000])
def test_a_note_that_cannot_be_read_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / fresh_start.NOTE).write_text(content)
    assert fresh_start.unfinished_run(tmp_path, COMMAND) == ""
    run = begin(tmp_path)
    assert fresh_start.unfinished_run(tmp_path, COMMAND) == run


def test_the_note_shows_no_argument(tmp_path: Path) -> None:
    secret = Command("script", "train.py", ("--token", "hunter2"), load="")
    fresh_start.note_beginning(tmp_path, secret, "0")
    assert "hunter2" not in (tmp_path / fresh_start.NOTE).read_text()
