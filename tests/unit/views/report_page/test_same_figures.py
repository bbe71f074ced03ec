"""The page, `ftctl report` and the index say the same of one journal, whatever is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.run_dirs import Timed, at, failed, run_dir, started

from ftlaunch.history.events import sound
from ftlaunch.history.goodput import build_story
from ftlaunch.history.journal import read_events
from ftlaunch.history.report_view import report_data, report_lines
from ftlaunch.history.story import CLASSES, Story
from ftlaunch.history.timeline import moments
from ftlaunch.views.dashboard.run_state import RunState
from ftlaunch.views.report_page.data import encoded, page_data

END = at(1000, "job_finished", code=0, restarts=1)


def reported(made: Path) -> Story:
    """What `ftctl report` tells; it prints it without an error."""
    story = build_story(moments(map(sound, read_events(made))))
    json.dumps(report_data(story))
    assert report_lines(story)
    return story


def assert_same_figures(made: Path) -> dict[str, Any]:
    """The page, whose figures are those of the report."""
    data, story = page_data(made), reported(made)
    encoded(data)
    total = story.end - story.begin
    sums = dict(zip(CLASSES, map(sum, zip(*data["columns"]["seconds"], strict=True)), strict=True))
    for row in data["ledger"]:
        assert row["seconds"] == pytest.approx(story.seconds[row["name"]], abs=0.01)
        assert row["share"] == (story.seconds[row["name"]] / total if total > 0 else 0)
        assert sums[row["name"]] == pytest.approx(story.seconds[row["name"]], abs=0.6)
    assert data["effective"] == story.effective
    job = data["job"]
    assert (job["runs"], job["attempts"], job["ranks"]) == (story.runs, story.attempts, story.ranks)
    assert (job["steps_lost"], job["steps_made"], job["checkpoints"]) == (
        story.steps_lost, story.steps_made, story.checkpoints)  # fmt: skip
    assert job["incidents"] == len(story.incidents)
    assert sum(end - begin for _, begin, end in data["spans"]) == pytest.approx(total, abs=0.1)
    state = RunState(made)
    for event in read_events(made):
        state.apply(event)
    assert job["reached"] == (-1 if state.step is None else state.step)
    return data


def journal(told: list[tuple[float, str, int]]) -> list[Timed]:
    """A job of which so much is known: what happens, and after how many seconds and steps."""
    events, now, step = started(), 10.0, 0
    for seconds, what, number in told:
        now, step = now + seconds, step + number
        if what == "p":
            events.append(at(now, "progress", step=step))
        elif what == "f":
            events += failed(now, step, lost=min(number, step))
            now += 10
        elif what == "s":
            events.append(at(now, "stop_requested", by="me"))
        elif what == "e":
            events.append(at(now, "job_finished", code=0, restarts=0))
        elif what == "k":  # killed, and started again
            again = at(now + 3, "resumed", step=step, source="memory", steps_lost=min(number, step))
            events += [at(now, "job_started", job_id="j", ranks=2), at(now + 1, "attempt_started"), again]
            now += 3
        else:
            events.append(at(now, "checkpoint_committed", step=step, why="interval", bytes=1, seconds=0.5))
    return events


LIVES = st.lists(st.tuples(st.floats(0.1, 5000), st.sampled_from("pfsknec"), st.integers(0, 30)), max_size=40)
ODD = st.sampled_from([None, "many", [], {}, True, -1, 2.5, float("nan"), float("inf"), 10**400, ["a"], {"step": "x"}])
FIELDS = (
    "step", "steps_lost", "seconds", "since_progress", "ranks", "bytes", "rank", "kind", "sentence", "cause",
    "verdict", "source", "why", "killed_at", "code", "by", "job_id", "command", "log_dir", "trace", "health", "loss",
)  # fmt: skip


@given(LIVES)
def test_whole_journals_give_the_same_figures(
    tmp_path_factory: pytest.TempPathFactory, told: list[tuple[float, str, int]]
) -> None:
    assert_same_figures(run_dir(tmp_path_factory.mktemp("run"), journal(told)))


@given(LIVES, st.lists(st.tuples(st.integers(0, 200), st.sampled_from(FIELDS), ODD), max_size=8))
def test_odd_journals_give_the_same_figures(
    tmp_path_factory: pytest.TempPathFactory, told: list[tuple[float, str, int]], odd: list[tuple[int, str, Any]]
) -> None:
    """A field that holds something else is left out, and its event counts. Taken out (`sound` in `ftctl report`): it
    ended in a traceback; and as long as the page left out the event, it told of 0 incidents where there was one."""
    events = [(when, name, dict(fields)) for when, name, fields in [*journal(told), END]]
    for place, field, value in odd:
        events[place % len(events)][2][field] = value
    assert_same_figures(run_dir(tmp_path_factory.mktemp("run"), events))


def test_an_incident_with_one_odd_field_counts(tmp_path: Path) -> None:
    """Taken out (the whole event was left out): the page said 99.3 % and no incident."""
    data = assert_same_figures(run_dir(tmp_path, [*started(), *failed(500, 90, delay="soon"), END]))
    assert data["job"]["incidents"] == 1
    assert len(data["notes"]) == 1


def test_a_word_within_a_field_is_no_resume(tmp_path: Path) -> None:
    """Taken out (a search for the bytes alone): the page said 0 % where the report says that it is not known."""
    begun = [at(0, "job_started", job_id="j", ranks=1), at(1, "attempt_started")]
    data = assert_same_figures(run_dir(tmp_path, [*begun, at(9, "notified", told={"event": "resumed"}), END]))
    assert data["effective"] is None


@pytest.mark.parametrize(
    ("events", "step"),
    [
        pytest.param([at(20, "progress", step=284), at(21, "checkpoint_committed", step=300)], 300, id="saved"),
        pytest.param([at(20, "progress", step=300), at(25, "checkpoint_committed", step=290)], 300, id="saved late"),
        pytest.param([at(20, "progress", step=300), at(30, "resumed", step=250)], 250, id="gone back"),
        pytest.param([at(20, "progress", step=5000), at(30, "job_finished", code=0), at(40, "job_started"),
                      at(41, "attempt_started")], -1, id="another job"),
        pytest.param([at(20, "progress", step=5000), at(30, "job_stopped", code=75), at(40, "job_started"),
                      at(41, "attempt_started")], 5000, id="stopped"),
        pytest.param([at(20, "progress", step=5000), at(30, "job_failed", code=1), at(40, "job_started"),
                      at(42, "resumed", step=0), at(43, "progress", step=3)], 3, id="begun anew"),
    ],
)  # fmt: skip
def test_the_newest_step_is_that_of_the_job_that_runs(tmp_path: Path, events: list[Timed], step: int) -> None:
    """The page and the index say the same."""
    assert assert_same_figures(run_dir(tmp_path, [*started(), *events]))["job"]["reached"] == step


def test_an_incident_costs_no_more_than_the_job_had(tmp_path: Path) -> None:
    """Taken out (the bound of the steps that were made again): it cost 5,002 s in a job of 6 s."""
    begun = [*started()[:2], at(1, "resumed", step=0), at(3, "progress", step=2)]
    failure = [at(3, "incident", rank=0, step=2, verdict="restart", since_progress=0, sentence="x"),
               at(4, "resumed", step=0, steps_lost=5000), at(5, "recovered", step=1)]  # fmt: skip
    [incident] = assert_same_figures(run_dir(tmp_path, [*begun, *failure, at(6, "job_finished", code=0)]))["incidents"]
    assert incident["cost"] == 4
