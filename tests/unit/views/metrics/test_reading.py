"""Readings of a run dir whose job has no pages on this machine: what the journal alone tells."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.history.journal import EVENTS
from ftlaunch.system.device_names import DeviceNames
from ftlaunch.views.metrics.reading import JobReading, Sources


def read(run_dir: Path, *lines: dict[str, Any], ago: float = 60.0) -> JobReading:
    """The first reading of an exporter. Each line is a second later than the one before; ago: the first one."""
    begin = time.time() - ago
    with (run_dir / EVENTS).open("w") as file:
        for number, line in enumerate(lines):
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(begin + number))
            file.write(json.dumps({"t": f"{stamp}.000Z", "mono": number, "attempt": 0, **line}) + "\n")
    sources = Sources(run_dir, (), DeviceNames("", "", "", "", ()))
    found = sources.read()
    sources.close()
    return found


STARTED = {"event": "job_started", "job_id": "j", "ranks": 2, "memory_dir": "/nothing/here"}
STEP = {"event": "progress", "step": 7}


def test_an_exporter_that_begins_knows_the_newest_progress_from_the_journal(tmp_path: Path) -> None:
    """Taken out by hand: without the journal's answer the alert on no progress waits for a step that never comes."""
    found = read(tmp_path, STARTED, STEP, {"event": "incident", "kind": "killed", "step": 7, "rank": 1})
    assert found.progressed is not None
    assert found.mono - found.progressed == pytest.approx(59, abs=1.5)


def test_before_the_first_step_of_a_run_there_is_none(tmp_path: Path) -> None:
    assert read(tmp_path, STARTED).progressed is None
    assert read(tmp_path, STARTED, STEP, {"event": "job_stopped"}, STARTED).progressed is None
