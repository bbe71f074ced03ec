"""Whatever a journal holds, readings, metrics and traces are made of the lines that make sense."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from ftlaunch.history.journal import EVENTS, JournalFollower
from ftlaunch.system.device_names import DeviceNames
from ftlaunch.views.metrics.line_check import sound
from ftlaunch.views.metrics.reading import Sources
from ftlaunch.views.metrics.registry import ReadingCollector
from ftlaunch.views.metrics.traces.phases import RestartPhases

STAMP = {"t": "2031-01-02T03:04:05.000Z", "mono": 5.0, "attempt": 0}
LINES: dict[str, dict[str, Any]] = {
    "job_started": {"job_id": "j", "ranks": 2, "max_restarts": 3, "max_hang_restarts": 1, "host": "h", "run_dir": "/r",
                    "memory_dir": "/nothing/here", "killed_at": {"step": 3, "ago": 1.5}},
    "attempt_started": {"seconds": 0.5, "pids": None, "port": 1},
    "attempt_adopted": {"seconds": None, "pids": [1, 2]},
    "resumed": {"step": 4, "source": "memory", "steps_lost": 2, "seconds": 1.5},
    "resume_verified": {"step": 4, "steps": 2, "answer": "same", "sentence": "s"},
    "resume_unverified": {"step": 4, "sentence": "s"}, "resume_differs": {"step": 5, "rank": 1, "sentence": "s"},
    "progress": {"step": 7},
    "incident": {"kind": "killed", "rank": 1, "step": 7, "since_progress": 0.5, "verdict": "restart", "sentence": "s",
                 "restarts_left": 2, "hang_restarts_left": 1, "delay": 0.0},
    "rank_exited": {"rank": 1, "step": 7, "code": 1, "signal": None},
    "recovered": {"step": 8, "seconds": 2.5},
    "rank_slow": {"rank": 1}, "rank_slow_over": {"rank": 1},
    "stop_requested": {"by": "me"}, "stop_announced": {"step": 9, "front": 9},
    "checkpoint_committed": {"step": 9, "why": "stop", "bytes": 5, "seconds": 0.5},
    "unsound": {"kind": "nan"}, "notified": {}, "saver_died": {"step": None},
    "job_stopped": {"code": 75, "committed": 9},
}  # fmt: skip
NAMES = sorted({name for fields in LINES.values() for name in fields} | {*STAMP, "event"})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400) | st.sampled_from([*LINES]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES) | st.text(), inner, max_size=2),
    max_leaves=4,
)


def whole(event: str) -> bytes:
    """A line as it should be."""
    return json.dumps({**STAMP, "event": event, **LINES[event]}).encode()


@st.composite
def journals(draw: st.DrawFn) -> list[bytes]:
    """The journal of a job with an incident, of which some lines have another value or lack one, or are no lines."""
    found = [whole(event) for event in LINES]
    for place in draw(st.lists(st.integers(0, len(LINES) - 1), min_size=1, max_size=4)):
        event = [*LINES][place]
        line = {**STAMP, "event": event, **LINES[event]}
        name = draw(st.sampled_from([*line]))
        line = {**line, name: draw(VALUES)} if draw(st.booleans()) else {k: v for k, v in line.items() if k != name}
        found[place] = json.dumps(line).encode()
    if draw(st.integers(0, 3)) == 0:
        found.insert(draw(st.integers(0, len(found))), draw(st.binary(max_size=40)).replace(b"\n", b""))
    return found


def page_of(journal: list[bytes]) -> bytes:
    """What metrics say of a journal; its restarts are made traces of as well."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / EVENTS).write_bytes(b"".join(line + b"\n" for line in journal))
        sources = Sources(Path(folder), ("killed",), DeviceNames("", "", "", "", ()))
        page = generate_latest(ReadingCollector(sources.read(), {}, by_rank=True))
        phases = RestartPhases()
        for event in filter(sound, JournalFollower(Path(folder)).events()):
            phases.apply(event)
        sources.close()
    return page


@given(journals())
def test_no_journal_ends_a_reading(journal: list[bytes]) -> None:
    """Taken out by hand: without `sound` a text as `seconds` ends the exporter, and the tracer."""
    page = page_of(journal)
    assert b"ftlaunch_job_info{" in page or whole("job_started") not in journal


@pytest.mark.parametrize(
    ("event", "odd"),
    [
        ("resumed", {"seconds": "x"}), ("resumed", {"seconds": [1]}), ("rank_exited", {"rank": [1]}),
        ("job_started", {"ranks": "many"}), ("job_started", {"max_restarts": None}),
        ("job_started", {"killed_at": {"step": "x"}}), ("incident", {"since_progress": "x"}),
        ("incident", {"since_progress": None}), ("recovered", {"seconds": float("nan")}),
        ("checkpoint_committed", {"bytes": 10**400}), ("progress", {"mono": "5"}), ("progress", {"step": True}),
    ],
)  # fmt: skip
def test_a_line_with_a_value_of_another_type_is_counted_and_passed_over(event: str, odd: dict[str, Any]) -> None:
    assert not sound({**STAMP, "event": event, **LINES[event], **odd})
    strange = json.dumps({**STAMP, "event": event, **LINES[event], **odd}).encode()
    page = page_of([*map(whole, ("job_started", "attempt_started", "incident")), strange])
    assert b'ftlaunch_incidents_total{job_id="j",kind="killed"} 1.0' in page


def test_lines_as_they_are_written_are_sound() -> None:
    assert [event for event, fields in LINES.items() if not sound({**STAMP, "event": event, **fields})] == []


def test_what_is_skipped_is_counted() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / EVENTS
        path.write_bytes(b'{"event": "torn\n\n[1]\n' + b"[" * 100_000 + b'\n{"event": "progress", "step": []}\n')
        sources = Sources(Path(folder), (), DeviceNames("", "", "", "", ()))
        assert sources.read().tally.start is None
        assert sources.skipped == 4
        sources.close()


def test_a_name_that_is_no_text_of_utf_8_is_told_all_the_same() -> None:
    started = {**STAMP, "event": "job_started", **LINES["job_started"], "job_id": "\ud800", "host": [1]}
    assert b'ftlaunch_ranks_asked{job_id="?"} 2.0' in page_of([json.dumps(started).encode()])
