"""Where in a log that runs share the newest one begins, also where a clock was set back."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ftlaunch.history.rank_logs import LocalLogs
from ftlaunch.history.run_logs import NewestRun

NOON = 1_790_000_000.0


def event(name: str, wall: float) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(wall))
    return json.dumps({"t": stamp, "mono": 1.0, "attempt": 0, "event": name}) + "\n"


def note(wall: float, length: int) -> str:
    return json.dumps({"t": wall, "sizes": {"0": length}, "begins": "attempt"}) + "\n"


@pytest.mark.parametrize(
    ("begun", "told"),
    [
        pytest.param(NOON + 60, NOON + 61, id="right clock"),
        pytest.param(NOON - 3540, NOON - 3539, id="set back between the runs"),
        pytest.param(NOON + 60, NOON - 3539, id="set back at the start of the second run"),
    ],
)
def test_the_newest_run_begins_where_its_note_says(tmp_path: Path, begun: float, told: float) -> None:
    """Taken out (notes in the order of their times): the lines of both runs, or none for an hour."""
    folder = tmp_path / "logs" / "attempt_0"
    folder.mkdir(parents=True)
    log = folder / "rank_0.log"
    log.write_text("first\nsecond\n")
    first = event("job_started", NOON) + event("attempt_started", NOON + 1)
    second = event("job_started", begun) + event("attempt_started", told)
    (tmp_path / "events.jsonl").write_text(first + second)
    (folder / "marks.0.jsonl").write_text(note(NOON + 0.9, 0) + note(told - 0.1, 6))
    run = NewestRun(tmp_path, LocalLogs(tmp_path / "logs"))
    run.read_journal()
    assert run.attempts() == [0]
    assert run.begin(run.logs_of(0)[0]) == 6
