"""What people are told of each kind of event, word by word."""

from __future__ import annotations

from typing import Any

import pytest

from ftlaunch.notify import client
from ftlaunch.notify.message import SoFar, Telling, apply_event, telling
from ftlaunch.reporting import page_at_end

JOB = {"job_id": "gpt", "run_dir": "/runs/gpt", "host": "login-1"}
MORE = "More: ftctl report /runs/gpt  (on login-1)"
STARTED = {"event": "job_started", "mono": 1000.0}
INCIDENT = {
    "event": "incident", "kind": "killed", "rank": 3, "verdict": "restart", "delay": 0.0, "step": 120,
    "since_progress": 0.4, "cause": "rank 3 was killed by SIGKILL after step 120",
    "sentence": "rank 3 was killed by SIGKILL after step 120; restarting now, 2 of 3 restarts left",
    "autopsy": None, "host": None,
}  # fmt: skip
RESUMED = {"event": "resumed", "step": 118, "source": "memory", "steps_lost": 2}
RECOVERED = {"event": "recovered", "step": 119, "seconds": 0.7}
SAVED = {"event": "checkpoint_committed", "step": 100}


def after(*lines: dict[str, Any]) -> SoFar:
    so_far = SoFar()
    for line in lines:
        so_far = apply_event(so_far, line)
    return so_far


def told(kind: str, line: dict[str, Any], *before: dict[str, Any], link: str = "") -> Telling:
    return telling(kind, JOB, line, after(*before), link)


def text(*sentences: str) -> str:
    return "\n".join([*sentences, MORE])


def test_an_incident() -> None:
    assert told("incident", INCIDENT, STARTED) == Telling(
        "gpt: rank 3 failed (killed), restarting",
        text(
            "Rank 3 was killed by SIGKILL after step 120; restarting now, 2 of 3 restarts left.",
            "Step 120 was the last that all ranks had made, 400 ms before the failure was seen.",
            "All ranks start again now, from the newest step that all of them have.",
            "What this has cost is known once the first new step is made.",
        ),
    )


def test_an_incident_of_several_nodes_after_another_one() -> None:
    line = {**INCIDENT, "host": "node-7", "delay": 8.5, "kind": "hang", "autopsy": "/runs/gpt/autopsy/attempt_1"}
    assert told("incident", line, STARTED, INCIDENT) == Telling(
        "gpt: rank 3 on node-7 failed (hang), restarting",
        text(
            "Rank 3 was killed by SIGKILL after step 120; restarting now, 2 of 3 restarts left.",
            "The rank ran on node-7.",
            "Step 120 was the last that all ranks had made, 400 ms before the failure was seen.",
            "The job had not made a new step since the failure before.",
            "All ranks start again in 8.5 s, from the newest step that all of them have.",
            "What this has cost is known once the first new step is made.",
            "The autopsy is in /runs/gpt/autopsy/attempt_1.",
        ),
    )


def test_an_incident_before_any_step_that_ends_the_job() -> None:
    line = {**INCIDENT, "verdict": "give up", "step": -1, "sentence": "rank 3 failed; giving up: 3 of 3 are used up"}
    assert told("incident", line) == Telling(
        "gpt: rank 3 failed (killed), not restarting",
        text("Rank 3 failed; giving up: 3 of 3 are used up.", "The job is not restarted any more."),
    )


def test_back_after_a_restart() -> None:
    assert told("recovered", RECOVERED, STARTED, INCIDENT, RESUMED) == Telling(
        "gpt: back at step 119 after 700 ms, 2 steps lost",
        text(
            "The job trains again: step 119 is made, 700 ms after the failure was seen.",
            "The failure was: rank 3 was killed by SIGKILL after step 120.",
            "The ranks resumed at step 118 from memory.",
            "2 steps were lost and had to be made again.",
        ),
    )


@pytest.mark.parametrize(
    ("lost", "title", "says"),
    [
        (0, "gpt: back at step 119 after 700 ms, no steps lost", "No step was lost."),
        (1, "gpt: back at step 119 after 700 ms, 1 step lost", "1 step was lost and had to be made again."),
        (None, "gpt: back at step 119 after 700 ms", "How many steps were lost is not known."),
    ],
)
def test_what_a_restart_has_cost(lost: int | None, title: str, says: str) -> None:
    found = told("recovered", RECOVERED, STARTED, INCIDENT, {**RESUMED, "steps_lost": lost})
    assert found.title == title
    assert says in found.text.splitlines()


def test_back_after_two_failures_in_a_row_from_nothing() -> None:
    second = {**INCIDENT, "cause": "rank 0 failed"}
    nothing = {**RESUMED, "step": 0, "source": None, "steps_lost": 5}
    assert told("recovered", RECOVERED, STARTED, INCIDENT, RESUMED, second, nothing) == Telling(
        "gpt: back at step 119 after 700 ms, 7 steps lost",
        text(
            "The job trains again: step 119 is made, 700 ms after the failure was seen.",
            "2 failures had followed each other; this was the first: rank 3 was killed by SIGKILL after step 120.",
            "The ranks resumed at step 0 from nothing that was saved.",
            "7 steps were lost and had to be made again.",
        ),
    )


def test_a_resume_at_the_start_loses_nothing() -> None:
    start = {**RESUMED, "step": 0, "steps_lost": None}
    assert "2 steps lost" in told("recovered", RECOVERED, STARTED, start, INCIDENT, RESUMED).title


def test_done() -> None:
    line = {"event": "job_finished", "mono": 1000.0 + 3 * 3600, "restarts": 2}
    twice = [INCIDENT, RESUMED, RECOVERED] * 2
    assert told("done", line, STARTED, *twice, SAVED) == Telling(
        "gpt: done; 2 restarts used",
        text(
            "The job is done; this run has taken 3 h 0 min.",
            "It was restarted twice; failures have cost 1.4 s without new steps, and 4 steps had to be made again.",
            "The newest step on storage is 100.",
        ),
    )
    assert told("done", {"event": "job_finished", "restarts": 0}) == Telling(
        "gpt: done; no restarts used", text("The job is done.", "It was not restarted.")
    )


def test_given_up() -> None:
    line = {"event": "job_failed", "mono": 1012.0, "sentence": "rank 3 failed; giving up: no restarts are left"}
    assert told(
        "give_up", line, STARTED, INCIDENT, RESUMED, RECOVERED, SAVED, {**INCIDENT, "mono": 1007.0}, RESUMED
    ) == Telling(
        "gpt: given up",
        text(
            "The job is given up; this run has taken 12 s.",
            "Rank 3 failed; giving up: no restarts are left.",
            "It was restarted twice; failures have cost 5.7 s without new steps, and 4 steps had to be made again.",
            "The newest step on storage is 100.",
            "ftlaunch does not restart it: when the cause is mended, run the same `ftlaunch` command again.",
        ),
    )
    assert told("give_up", {"event": "job_failed"}) == Telling(
        "gpt: given up",
        text(
            "The job is given up.",
            "The reason stands in the journal.",
            "It was not restarted.",
            "This run has saved no step to storage.",
            "ftlaunch does not restart it: when the cause is mended, run the same `ftlaunch` command again.",
        ),
    )


def test_stopped() -> None:
    line = {"event": "job_stopped", "mono": 1012.0, "step": 120, "code": 75}
    assert told("stopped", line, STARTED, INCIDENT, RESUMED, RECOVERED) == Telling(
        "gpt: stopped; it goes on from step 120",
        text(
            "The job was asked to stop, and has stopped; this run has taken 12 s.",
            "It was restarted once; failures have cost 700 ms without new steps, and 2 steps had to be made again.",
            "The same command goes on from step 120.",
        ),
    )
    assert told("stopped", {"event": "job_stopped", "step": -1}) == Telling(
        "gpt: stopped; nothing was saved",
        text("The job was asked to stop, and has stopped.", "It was not restarted.", "The same command begins anew."),
    )


@pytest.mark.parametrize("kind", ["done", "give_up", "stopped", "incident"])
def test_the_last_message_names_the_report_where_there_is_no_link(kind: str) -> None:
    page = "The report for a browser is written to /runs/gpt/report.html."
    for link in ("", "https://dash.example"):
        found = telling(kind, JOB, {"event": "x", **INCIDENT}, SoFar(), link, "/runs/gpt/report.html")
        assert (page in found.text.splitlines()) is (not link and kind != "incident")
    assert page not in telling(kind, JOB, INCIDENT, SoFar()).text.splitlines()


def test_the_report_is_where_it_is_written() -> None:
    assert client.PAGE == page_at_end.PAGE


def test_a_slow_rank() -> None:
    assert told("slow", {"event": "rank_slow", "rank": 5, "sentence": "rank 5 is slow: it takes 2 s"}) == Telling(
        "gpt: rank 5 is slow",
        text("Rank 5 is slow: it takes 2 s.", "The job goes on. With `on_slow: restart` an incident follows."),
    )


def test_half_of_a_limit_is_over() -> None:
    line = {"event": "hang_suspected", "rank": 5, "step": 40, "age": 45.0, "limit": 90.0}
    assert told("hang_suspected", line) == Telling(
        "gpt: rank 5 has made no progress for 45 s",
        text(
            "Rank 5 has made no progress for 45 s; at 90 s it counts as hung. Its last step is 40.",
            "Nothing was done yet. At the limit the stacks of all ranks are collected, and that counts as a failure.",
        ),
    )


def test_the_users_link_comes_first_and_a_run_dir_is_quoted() -> None:
    job = {**JOB, "run_dir": "/runs/my job"}
    found = telling("slow", job, {"event": "rank_slow"}, SoFar(), "https://dash.example/{job_id}?dir={run_dir}")
    assert found.text.splitlines()[-1] == (
        "More: https://dash.example/gpt?dir=/runs/my%20job or ftctl report '/runs/my job'  (on login-1)"
    )


def test_what_a_rank_has_said_commands_no_terminal_and_is_cut() -> None:
    found = told("incident", {**INCIDENT, "sentence": "\x1b[2J" + "x" * 5000})
    assert "\x1b" not in found.text
    assert max(map(len, found.text.splitlines())) <= 620


def test_a_resumed_run_that_differs() -> None:
    line = {"event": "resume_differs", "step": 12, "rank": 0, "act": "continue", "sentence": "the resumed run differs"}
    assert told("differs", line) == Telling(
        "gpt: the resumed run differs from step 12 on",
        text("The resumed run differs.", "The job goes on. With `on_difference: stop` it ends there."),
    )
    ended = told("differs", {**line, "act": "stop"})
    assert "The job is ended (`on_difference: stop`)." in ended.text
