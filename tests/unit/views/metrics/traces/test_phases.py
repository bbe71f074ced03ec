"""From a journal to the phases of each restart."""

from __future__ import annotations

from typing import Any

import pytest

from ftlaunch.views.metrics.traces.phases import RestartPhases, RestartTrace


def line(event: str, second: float, attempt: int = 0, **fields: Any) -> dict[str, Any]:
    return {"t": "1970-01-01T00:00:00.000Z", "mono": second, "attempt": attempt, "event": event, **fields}


START = line("job_started", 0, job_id="j", host="h")
FAILURE = line("incident", 10, kind="killed", rank=1, verdict="restart", since_progress=2.0, cause="a secret")
RESTART = [
    START,
    FAILURE,
    line("rank_exited", 10.5, rank=1),
    line("rank_exited", 11, rank=0),
    line("attempt_started", 14, 1, seconds=1.0),
    line("resumed", 16, 1, source="memory", steps_lost=3),
    line("rank_exited", 16.5, 1, rank=0),
    line("recovered", 17, 1),
]


def traces(*lines: dict[str, Any]) -> list[RestartTrace]:
    phases = RestartPhases()
    return [found for each in lines for found in phases.apply(each)]


def spans(found: RestartTrace) -> list[tuple[str, float, float]]:
    return [(phase.name, phase.begin, phase.end) for phase in found.phases]


def test_phases_follow_each_other() -> None:
    (found,) = traces(*RESTART)
    assert spans(found) == [
        ("detecting", 8, 10), ("killing", 10, 11), ("planning", 11, 13), ("spawning", 13, 14), ("loading", 14, 16),
        ("first step", 16, 17),
    ]  # fmt: skip
    assert (found.job_id, found.host, found.error) == ("j", "h", "")


def test_nothing_that_the_job_has_written_is_sent() -> None:
    (found,) = traces(*RESTART)
    wanted = {"kind": "killed", "rank": 1, "verdict": "restart", "attempt": 0, "source": "memory", "steps_lost": 3}
    assert found.notes == wanted


def test_another_incident_before_a_new_step_begins_another_trace() -> None:
    first, second = traces(*RESTART[:5], {**FAILURE, "mono": 15, "since_progress": 0.5}, *RESTART[4:])
    assert [name for name, *_ in spans(first)] == ["detecting", "killing", "planning", "spawning"]
    assert first.error == "another incident came before a new step"
    assert second.error == ""


@pytest.mark.parametrize(
    ("event", "error"),
    [("job_failed", "the job was given up"), ("job_stopped", "the job ended before a new step")],
)
def test_a_job_that_ends_has_no_more_phases(event: str, error: str) -> None:
    (found,) = traces(*RESTART[:4], line(event, 20))
    assert spans(found) == [("detecting", 8, 10), ("killing", 10, 11)]
    assert found.error == error


def test_a_supervisor_that_was_killed_leaves_no_trace_behind() -> None:
    assert traces(*RESTART[:5], START, line("attempt_started", 21), line("recovered", 22)) == []


@pytest.mark.parametrize("rubbish", [{}, {"event": "incident"}, {"event": "job_started", "t": 1}])
def test_a_line_that_is_not_ours_does_no_harm(rubbish: dict[str, Any]) -> None:
    assert len(traces(rubbish, *RESTART)) == 1
