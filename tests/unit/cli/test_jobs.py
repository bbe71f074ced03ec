"""The list of jobs fits on a terminal, and is whole in a pipe."""

from __future__ import annotations

import time

import pytest

from ftlaunch.cli.jobs import JobRow, job_lines

LONG = JobRow(
    "night", "running", True, 12, "2031-01-02T03:04:05.000Z", "rank 1 " + "x" * 99, "/data/" + "y" * 99 + "/run"
)


@pytest.mark.parametrize("width", [80, 100, 132])
def test_it_fits_on_a_terminal(width: int) -> None:
    lines = job_lines([LONG, LONG], width)
    assert max(map(len, lines)) <= width
    assert "night" in lines[1]
    assert "/data/yy" in lines[1]
    assert "yy/run" in lines[1]


def test_in_a_pipe_it_is_whole() -> None:
    line = job_lines([LONG], None)[1]
    assert LONG.incident in line
    assert LONG.run_dir in line


def test_times_say_their_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    head, line = job_lines([LONG], None)
    assert "started (EST)" in head
    assert "2031-01-01 22:04" in line
    monkeypatch.undo()
    time.tzset()
