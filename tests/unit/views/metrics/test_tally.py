"""What a journal adds up to."""

from __future__ import annotations

from typing import Any

import pytest

from ftlaunch.history import goodput
from ftlaunch.history.timeline import moments
from ftlaunch.views.metrics.tally import SAVE_BOUNDS, Distribution, Tally

KINDS = ("hang", "killed")


def line(event: str, second: float, attempt: int = 0, **fields: Any) -> dict[str, Any]:
    minute, rest = divmod(second, 60)
    return {
        "t": f"2031-01-02T03:{minute:02.0f}:{rest:06.3f}Z",
        "mono": second,
        "attempt": attempt,
        "event": event,
        **fields,
    }


def started(second: float = 0) -> dict[str, Any]:
    return line("job_started", second, job_id="j", ranks=2, max_restarts=3, max_hang_restarts=1)


def incident(second: float, kind: str = "killed", verdict: str = "restart", left: int = 2) -> dict[str, Any]:
    told = {"kind": kind, "verdict": verdict, "restarts_left": left, "hang_restarts_left": 1, "since_progress": 1.0}
    return line("incident", second, **told, step=10)


JOURNAL = [
    started(),
    line("attempt_started", 1),
    line("resumed", 2, step=0, source=None, steps_lost=None, seconds=None),
    line("progress", 6, step=4),
    line("progress", 12, step=10),
    line("checkpoint_committed", 12, step=10, why="interval", bytes=1000, seconds=0.7),
    incident(14),
    line("rank_exited", 15, rank=0, step=10),
    line("attempt_started", 16, 1),
    line("resumed", 18, 1, step=8, source="memory", steps_lost=2, seconds=4.0),
    line("recovered", 19, 1, step=9, seconds=5.0),
    line("progress", 24, 1, step=14),
]


def of(*lines: dict[str, Any]) -> Tally:
    tally = Tally(KINDS)
    for each in lines:
        tally.apply(each)
    return tally


def test_counters_are_those_of_the_journal() -> None:
    tally = of(*JOURNAL)
    assert (tally.runs, tally.attempts, tally.attempt, tally.steps_lost) == (1, 2, 1, 2)
    assert (dict(tally.incidents), dict(tally.restarts)) == ({"killed": 1}, {"killed": 1})
    assert tally.restarts_left == {"failure": 2, "hang": 1}
    assert (tally.committed, dict(tally.commits), tally.saved_bytes) == (10, {"interval": 1}, 1000)
    assert (tally.to_resumed.sum, tally.to_first_step.sum, tally.save_seconds.sum) == (4.0, 5.0, 0.7)


def test_a_budget_is_whole_before_the_first_incident() -> None:
    assert of(started()).restarts_left == {"failure": 3, "hang": 1}


def test_words_that_nobody_knows_are_other() -> None:
    """A label has no more values than the table says, whatever a journal holds."""
    tally = of(started(), *(incident(n, kind=f"kind {n}") for n in range(5)), incident(6, kind="hang"))
    assert dict(tally.incidents) == {"other": 5, "hang": 1}
    assert dict(of(line("checkpoint_committed", 1, why="whim")).commits) == {"other": 1}


@pytest.mark.parametrize(
    "rubbish",
    [
        {}, {"event": 7, "t": "x"}, {"event": "incident"}, {"event": "progress", "t": "?"},
        line("incident", 1, restarts_left=None), line("job_started", 1, max_restarts="x"),
    ],
)  # fmt: skip
def test_a_line_that_is_not_ours_does_no_harm(rubbish: dict[str, Any]) -> None:
    tally, sound = of(started(), rubbish, *JOURNAL), of(started(), *JOURNAL)
    assert sum(tally.seconds(1e10).values()) == pytest.approx(sum(sound.seconds(1e10).values()))
    assert (tally.committed, tally.steps_lost, tally.state) == (sound.committed, sound.steps_lost, sound.state)


@pytest.mark.parametrize("odd", ["4.0", [4.0], True, float("inf"), 10**400])
def test_a_field_that_holds_no_number_is_skipped_and_its_line_is_counted(odd: object) -> None:
    """Journals may be edited by hand. Taken out: without `_number` a text ends the reader with TypeError."""
    tally = of(
        {**started(), "jobset_restart": odd},
        line("resumed", 2, steps_lost=2, seconds=odd),
        line("recovered", 3, step=9, seconds=odd),
        line("checkpoint_committed", 4, step=10, why="interval", bytes=1000, seconds=odd),
    )
    assert tally.jobset_restart is None
    for skipped in (tally.to_resumed, tally.to_first_step, tally.save_seconds):
        assert (skipped.sum, skipped.buckets()[-1]) == (0.0, ("+Inf", 0))
    assert (tally.steps_lost, tally.committed, dict(tally.commits)) == (2, 10, {"interval": 1})


def test_the_number_of_jobsets_restarts_is_that_of_the_start() -> None:
    assert of({**started(), "jobset_restart": 2}).jobset_restart == 2
    assert of(started()).jobset_restart is None


def test_goodput_is_that_of_the_report() -> None:
    """What is left out of the lines that are kept (milestones in a row, ends of ranks) changes no second."""
    tally, ends = of(*JOURNAL), line("job_stopped", 30, 1, code=75, step=14)
    tally.apply(ends)
    assert tally.seconds(1e10) == pytest.approx(goodput.build_story(moments([*JOURNAL, ends])).seconds)
    assert tally.seconds(1e10)["useful"] > 10


def test_time_goes_on_until_now_and_ends_with_the_job() -> None:
    tally = of(*JOURNAL)
    began = moments([JOURNAL[0]])[0].wall
    assert sum(tally.seconds(began + 100).values()) == pytest.approx(100)
    before = tally.seconds(began + 100)["useful"]
    assert tally.seconds(began + 110)["useful"] == pytest.approx(before + 10)
    tally.apply(line("job_failed", 50, 1, code=1))
    assert sum(tally.seconds(began + 1000).values()) == pytest.approx(50)
    assert tally.state == "failed"


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_clock_that_jumps_makes_no_hour_of_training(jump: float) -> None:
    """Taken out: an hour of `useful` was added until the next event, or no second for an hour."""
    tally = of(*JOURNAL)
    began = moments([JOURNAL[0]])[0].wall
    for passed in (30.0, 40.0):
        assert sum(tally.goodput(began + passed + jump, mono=passed).seconds.values()) == pytest.approx(passed)
    assert sum(tally.goodput(began + 100, mono=1.0).seconds.values()) == pytest.approx(100)  # after a reboot


def test_few_lines_are_kept_of_a_long_job() -> None:
    """Taken out by hand: without the `pop` in _keep() a month has 43,000."""
    tally = of(*JOURNAL, *(line("progress", 24 + n / 100, 1, step=14 + n) for n in range(3000)))
    assert len(tally.story_lines) < 12
    ranks = (line("rank_exited", 60, 1, rank=rank, step=3000) for rank in range(1024))
    tally = of(*JOURNAL, *ranks, incident(61), line("attempt_started", 62, 2))
    assert len(tally.story_lines) < 12


def test_another_run_forgets_the_end_and_keeps_the_counts() -> None:
    tally = of(*JOURNAL, line("rank_slow", 25, 1, rank=1), line("saver_missing", 26, 1), line("job_failed", 30, 1))
    assert (tally.state, tally.slow, tally.saver_up) == ("failed", {1}, False)
    tally.apply(started(40))
    assert (tally.state, tally.slow, tally.saver_up, tally.runs) == ("", set(), True, 2)
    assert dict(tally.incidents) == {"killed": 1}
    assert tally.seconds(0)["down"] == pytest.approx(10)


def test_a_straggler_a_saver_and_storage_come_and_go() -> None:
    tally = of(started(), line("rank_slow", 1, rank=3), line("rank_slow", 2, rank=5), line("rank_slow_over", 3, rank=3))
    assert tally.slow == {5}
    tally.apply(line("attempt_started", 4, 1))
    assert tally.slow == set()
    for event, saver, storage in (("saver_missing", False, True), ("saver_died", True, True),
                                  ("storage_silent", True, False), ("storage_answers", True, True)):  # fmt: skip
        tally.apply(line(event, 5))
        assert (tally.saver_up, tally.storage_answers) == (saver, storage)


def test_a_value_at_a_bound_counts_below_it() -> None:
    found = Distribution(SAVE_BOUNDS)
    for seconds in (0.1, 0.11, 1e9, None):
        found.add(seconds)
    buckets = dict(found.buckets())
    assert (buckets["0.1"], buckets["0.5"], buckets["1800.0"], buckets["+Inf"]) == (1, 2, 2, 3)


def test_progress_is_known_from_the_journal_and_goes_on_under_another_head() -> None:
    """Of a run that begins anew, and has made no step yet, none is known."""
    at = moments([line("progress", 24)])[0].wall
    assert of(*JOURNAL).progressed_at == at
    assert of(*JOURNAL, started(40)).progressed_at == 0
    adopted = of(*JOURNAL, started(40), line("attempt_adopted", 41, 1))
    assert adopted.progressed_at == at
    adopted.apply(line("progress", 50, 1, step=20))
    assert adopted.progressed_at == at + 26


def test_what_the_steps_made_again_have_shown_is_counted() -> None:
    tally = of(
        *JOURNAL,
        line("resume_verified", 25, 1, step=8, steps=2, answer="same"),
        line("resume_verified", 26, 2, step=8, steps=2, answer="rounded"),
        line("resume_unverified", 27, 3, step=8),
        line("resume_differs", 28, 4, step=9, rank=0),
    )
    assert tally.proofs == {"same": 1, "rounded": 1, "unverified": 1, "different": 1}
