"""Events -> incidents and the ledger, which adds up whatever the journal lacks."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from ftlaunch.history.goodput import build_story
from ftlaunch.history.story import CLASSES, HistoryEntry, Story
from ftlaunch.history.timeline import Moment, moments

Event = tuple[float, str, dict[str, Any]]


def at(when: float, event: str, **fields: Any) -> Event:
    return when, event, fields


def story(*events: Event) -> Story:
    return build_story([Moment(when, event, fields.pop("attempt", 0), fields) for when, event, fields in events])


def spent(told: Story) -> dict[str, float]:
    """The classes that took time."""
    return {name: round(seconds, 6) for name, seconds in told.seconds.items() if seconds}


START = [at(100, "job_started", job_id="j", ranks=2, killed_at=None), at(101, "attempt_started")]
RESUMED = at(110, "resumed", step=0, source=None, steps_lost=None)
QUIET = [*START, RESUMED]  # trains from 110 on


def incident(when: float, step: int, since: float = 0.5, verdict: str = "restart", **fields: Any) -> Event:
    return at(when, "incident", rank=1, kind="signal", sentence="rank 1 crashed; restarting now", verdict=verdict,
              step=step, since_progress=since, **fields)  # fmt: skip


def exits(when: float, step: int) -> list[Event]:
    return [at(when, "rank_exited", rank=rank, step=step) for rank in (0, 1)]


def test_a_quiet_run() -> None:
    told = story(*QUIET, *exits(210, 100), at(211, "job_finished", code=0))
    assert spent(told) == {"starting": 10, "useful": 100, "stopping": 1}
    assert (told.step_seconds, told.steps_made, told.ended, told.attempts) == (1.0, 100, True, 1)
    assert told.effective == 100 / 111
    assert (told.job_id, told.ranks, told.runs, told.incidents) == ("j", 2, 1, [])


def test_an_incident_that_costs_steps() -> None:
    told = story(
        *QUIET,
        incident(150, 40, since=2.0),  # 40 steps in 38 seconds
        at(151, "attempt_started", attempt=1),
        at(155, "resumed", step=30, source="memory", steps_lost=10, attempt=1),
        at(157, "recovered", step=31, attempt=1),
        *exits(217.95, 101),
        at(218, "job_finished"),
    )
    mean = (38 + 60.95) / (40 + 70)
    assert told.step_seconds == pytest.approx(mean)
    assert spent(told) == {
        "starting": 10, "detecting": 2, "restarting": 7, "stopping": 0.05,
        "lost": round(10 * mean, 6), "useful": round(38 + 60.95 - 10 * mean, 6),
    }  # fmt: skip
    (told_incident,) = told.incidents
    assert (told_incident.seen_after, told_incident.resumed_after, told_incident.recovered_after) == (2, 5, 7)
    assert (told_incident.resumed_step, told_incident.source, told_incident.steps_lost) == (30, "memory", 10)


def test_an_attempt_that_fails_before_it_has_recovered() -> None:
    told = story(
        *QUIET,
        incident(150, 40),
        at(151, "attempt_started", attempt=1),
        incident(160, 40, since=10.5, attempt=1),
        at(161, "attempt_started", attempt=2),
        at(165, "resumed", step=40, source="memory", steps_lost=0, attempt=2),
        at(166, "recovered", step=41, attempt=2),
        *exits(225, 100),
        at(225, "job_finished"),
    )
    assert spent(told) == {"starting": 10, "useful": 98.5, "detecting": 0.5, "restarting": 16}
    first, second = told.incidents
    assert (first.recovered_after, first.steps_lost, first.seen_after) == (None, None, 0.5)
    assert (second.recovered_after, second.steps_lost, second.seen_after) == (6, 0, None)


def test_progress_is_never_older_than_the_recovery() -> None:
    told = story(
        *QUIET,
        incident(150, 40),
        at(155, "resumed", step=40, source="memory", steps_lost=0),
        at(156, "recovered", step=41),
        incident(157, 41, since=100.0),
        at(160, "job_failed"),
    )
    assert spent(told) == {"starting": 10, "useful": 39.5, "detecting": 0.5 + 1, "restarting": 6 + 3}


def test_given_up() -> None:
    told = story(*QUIET, incident(150, 40, verdict="give up"), at(153, "job_failed", code=1))
    assert spent(told) == {"starting": 10, "useful": 39.5, "detecting": 0.5, "stopping": 3}
    assert [entry.what for entry in told.entries if isinstance(entry, HistoryEntry)] == ["started", "job_failed"]


def test_stopped_and_started_again() -> None:
    told = story(
        *QUIET,
        at(150, "stop_requested", by="SIGTERM"),
        at(150, "stop_announced", step=42, front=40),
        at(152, "checkpoint_committed", step=42, why="stop", bytes=10, seconds=1.0),
        *exits(152, 42),
        at(153, "job_stopped", step=42, code=75),
        at(253, "job_started", job_id="j", ranks=2, killed_at=None),
        at(260, "resumed", step=42, source="storage", steps_lost=None),
        *exits(318, 100),
        at(320, "job_finished"),
    )
    assert spent(told) == {"starting": 17, "useful": 98, "stopping": 5, "down": 100}
    assert (told.step_seconds, told.steps_lost, told.runs, told.checkpoints) == (1.0, 0, 2, 1)
    again = told.entries[4]
    assert isinstance(again, HistoryEntry)
    assert (again.fields["down"], again.fields["resumed"], again.fields["steps_lost"]) == (100, 42, 0)


def test_a_pause_is_no_training() -> None:
    """Other nodes were asked for: the ranks stop at 42, and go on from there."""
    told = story(
        *QUIET,
        at(150, "stop_announced", step=42, front=40),
        *exits(152, 42),
        at(153, "checkpoint_committed", step=42, why="stop", bytes=10, seconds=1.0),
        at(154, "attempt_started", attempt=1),
        at(160, "resumed", step=42, source="storage", steps_lost=0, attempt=1),
        *exits(218, 100),
        at(220, "job_finished"),
    )
    assert spent(told) == {"starting": 10, "useful": 98, "stopping": 6, "restarting": 6}
    assert (told.step_seconds, told.steps_lost, told.incidents) == (1.0, 0, [])


def test_a_stop_while_restarting_is_not_restarting() -> None:
    told = story(*QUIET, incident(150, 40), at(152, "stop_requested"), at(153, "job_stopped", step=40))
    assert spent(told) == {"starting": 10, "useful": 39.5, "detecting": 0.5, "restarting": 2, "stopping": 1}


def test_a_killed_supervisor_whose_pages_tell_when() -> None:
    told = story(
        *QUIET,
        at(120, "checkpoint_committed", step=10, why="interval"),
        at(200, "job_started", killed_at={"step": 40, "ago": 50.0}),
        at(210, "resumed", step=35, source="memory", steps_lost=5),
        *exits(275, 100),
        at(275, "job_finished"),
    )
    assert spent(told) == {"starting": 20, "useful": 100, "lost": 5, "down": 50}
    killed = told.entries[1]
    assert isinstance(killed, HistoryEntry)
    assert (killed.what, killed.at, killed.fields["known"]) == ("killed", 150, True)


def test_a_killed_supervisor_of_which_nothing_is_left() -> None:
    told = story(
        *QUIET,
        at(170, "progress", step=60),
        at(200, "job_started", killed_at=None),
        at(210, "resumed", step=50, source="storage", steps_lost=None),
        at(260, "progress", step=100),
    )
    assert spent(told) == {"starting": 20, "useful": 100, "lost": 10, "down": 30}
    assert told.steps_lost == 10
    assert not told.ended


@pytest.mark.parametrize("ago", [-5.0, 0.0, 1e9])
def test_nonsense_about_when_it_was_killed_is_kept_within_bounds(ago: float) -> None:
    told = story(*QUIET, at(200, "job_started", killed_at={"step": 40, "ago": ago}), at(201, "attempt_started"))
    assert sum(told.seconds.values()) == 101
    assert min(told.seconds.values()) >= 0


def test_ranks_that_do_not_say_their_steps() -> None:
    told = story(
        *START,
        incident(150, -1, since=49.0),
        at(151, "attempt_started", attempt=1),
        *exits(200, -1),
        at(201, "job_finished"),
    )
    assert spent(told) == {"starting": 1, "unknown": 49 + 49, "restarting": 1, "stopping": 1}
    assert (told.effective, told.step_seconds) == (None, None)


def test_another_run_after_the_end_has_lost_nothing() -> None:
    told = story(
        *QUIET, *exits(210, 100), at(210, "job_finished"), at(220, "job_started"),
        at(221, "resumed", step=0, source=None, steps_lost=None), *exits(231, 10), at(231, "job_finished"),
    )  # fmt: skip
    assert told.steps_lost == 0


FULL = [
    *QUIET,
    incident(150, 40),
    at(151, "attempt_started", attempt=1),
    at(155, "resumed", step=38, source="memory", steps_lost=2),
    at(156, "recovered", step=39),
    at(180, "stop_requested"),
    at(180, "stop_announced", front=60),
    *exits(182, 62),
    at(182, "checkpoint_committed", step=62, why="stop"),
    at(183, "job_stopped", step=62),
    at(190, "job_started"),
    at(195, "resumed", step=62, source="storage"),
    incident(200, 66, verdict="give up"),
    at(202, "job_failed"),
]


@pytest.mark.parametrize("missing", range(len(FULL)))
def test_the_ledger_adds_up_whichever_line_is_lost(missing: int) -> None:
    events = FULL[:missing] + FULL[missing + 1 :]
    told = story(*[(when, event, dict(fields)) for when, event, fields in events])
    assert set(told.seconds) == set(CLASSES)
    assert min(told.seconds.values()) >= 0
    assert sum(told.seconds.values()) == pytest.approx(told.end - told.begin)
    assert told.end - told.begin == events[-1][0] - events[0][0]


@pytest.mark.parametrize("length", range(1, len(FULL)))
def test_the_ledger_adds_up_wherever_the_journal_ends(length: int) -> None:
    told = story(*[(when, event, dict(fields)) for when, event, fields in FULL[:length]])
    assert sum(told.seconds.values()) == pytest.approx(FULL[length - 1][0] - 100)
    assert told.ended == (FULL[length - 1][1] in ("job_stopped", "job_failed"))


def test_nothing_told_is_no_story() -> None:
    told = build_story([])
    assert (told.runs, told.end - told.begin, told.effective) == (0, 0, None)


def adopted(when: float) -> list[Event]:
    return [at(when, "job_started", job_id="j", ranks=2, killed_at=None), at(when + 1, "attempt_adopted")]


def moved(*events: Event) -> Story:
    """As it is read from a journal."""
    stamps = [datetime.fromtimestamp(when, timezone.utc).isoformat() for when, _, _ in events]
    lines = zip(stamps, events, strict=True)
    told = [{"t": stamp, "mono": when, "attempt": 0, "event": name, **more} for stamp, (when, name, more) in lines]
    return build_story(moments(told))


def test_a_head_that_takes_up_ranks_that_run_is_no_run_and_costs_no_time() -> None:
    """Taken out: the ranks counted as starting from then on, and the job as run twice."""
    told = moved(*QUIET, *adopted(150), *exits(210, 100), at(211, "job_finished", code=0))
    assert spent(told) == {"starting": 10, "useful": 100, "stopping": 1}
    assert (told.runs, told.heads_replaced, told.attempts) == (1, 1, 1)
    assert (told.steps_made, told.step_seconds) == (100, 1.0)
    assert [entry.what for entry in told.entries if isinstance(entry, HistoryEntry)] == [
        "started", "head_replaced", "job_finished",
    ]  # fmt: skip


def test_a_head_that_dies_while_its_ranks_are_resuming() -> None:
    told = moved(*QUIET, incident(150, 40, since=0.0), *adopted(151), *exits(210, 100), at(211, "job_finished"))
    assert spent(told) == {"starting": 10, "useful": 98, "restarting": 2, "stopping": 1}


def test_a_head_that_starts_the_ranks_anew_is_another_run() -> None:
    told = moved(*QUIET, *START[:1], at(101, "attempt_started"), RESUMED, at(211, "job_finished"))
    assert (told.runs, told.heads_replaced) == (2, 0)
