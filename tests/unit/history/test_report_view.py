"""What ftctl prints: readable in 96 columns, and honest about what it does not know."""

from __future__ import annotations

import json
from typing import Any

from ftlaunch.history.goodput import build_story
from ftlaunch.history.report_view import ending, report_data, report_lines
from ftlaunch.history.status_view import status_lines
from ftlaunch.history.timeline import moments


def journal(*events: dict[str, Any]) -> list[dict[str, Any]]:
    """Events as in the file: `s` is the second of the day, for both clocks."""
    return [
        {"t": f"2031-05-06T{e['s'] // 3600:02d}:{e['s'] // 60 % 60:02d}:{e['s'] % 60:02d}.000Z",
         "mono": e["s"] + 1000.0, "attempt": 0, **e}
        for e in events
    ]  # fmt: skip


EVENTS = journal(
    {"s": 0, "event": "job_started", "job_id": "gpt-1a2b", "ranks": 2},
    {"s": 1, "event": "attempt_started"},
    {"s": 5, "event": "resumed", "step": 0, "source": None, "steps_lost": None},
    {"s": 65, "event": "incident", "rank": 1, "kind": "signal", "verdict": "restart", "step": 60,
     "sentence": "rank 1 was killed by SIGKILL after step 60; restarting now, 2 of 3 restarts left " + "x" * 60,
     "since_progress": 0.25},
    {"s": 67, "event": "resumed", "step": 59, "source": "memory", "steps_lost": 1},
    {"s": 68, "event": "recovered", "step": 60},
    {"s": 69, "event": "resume_verified", "step": 59, "steps": 1, "answer": "same",
     "sentence": "resumed at step 59: verified; the step made again was the same"},
    {"s": 70, "event": "checkpoint_rejected", "step": 50, "why": "x does not match its checksum", "steps_lost": 10},
    {"s": 71, "event": "checkpoint_failed", "step": 60, "error": "No space left on device"},
    {"s": 72, "event": "saver_died", "status": -9},
    {"s": 90, "event": "stop_requested", "by": "ftctl stop"},
    {"s": 92, "event": "checkpoint_committed", "step": 82, "why": "stop", "bytes": 3 << 30, "seconds": 1.5},
    {"s": 93, "event": "job_stopped", "step": 82, "code": 75},
    {"s": 86000, "event": "job_started", "job_id": "gpt-1a2b", "ranks": 2},
    {"s": 86010, "event": "resumed", "step": 82, "source": "storage", "steps_lost": None},
    {"s": 86010, "event": "resume_unverified", "step": 82, "sentence": "resumed at step 82: not verified; so it is"},
    {"s": 86010, "event": "resume_differs", "step": 83, "sentence": "the resumed run differs: step 83 was another"},
)  # fmt: skip


def test_report() -> None:
    text = report_lines(build_story(moments(EVENTS)))
    assert max(map(len, text)) <= 96
    whole = " ".join(" ".join(text).split())
    for piece in (
        "job gpt-1a2b: 2 ranks, 2 runs of the supervisor, 1 attempt, 1 incident",
        "incident in attempt 0: rank 1 was killed by SIGKILL after step 60; restarting now",
        "seen 250 ms after the last completed step; resumed at step 59 from memory after 2.0 s;"
        " first new step after 3.0 s; 1 step lost (60, which all ranks had completed)",
        "checkpoint of step 50 refused: x does not match its checksum; the next usable one is 10 steps older",
        "cannot save step 60: No space left on device",
        "the saver died (exit status -9)",
        "told to stop: ftctl stop",
        "saved step 82 (stop): 3.0 GiB in 1.5 s",
        "stopped (exit code 75), step 82 is saved",
        "(60, which all ranks had completed) resumed at step 59: verified; the step made again was the same",
        "started again, 23 h 51 min later; resumed at step 82 from storage",
        "lost resumed at step 82: not verified; so it is",
        "the resumed run differs: step 83 was another",
        "the journal ends here: the job is running, or its supervisor was killed",
        "effective training time: 0.09% (78.",
        "lost: 1, their time is estimated with it",
        "checkpoints: 1",
    ):
        assert piece in whole


def test_the_shares_add_up() -> None:
    text = report_lines(build_story(moments(EVENTS)))
    shares = [float(line.split("%")[0].split()[-1]) for line in text if line.startswith("  ") and "%" in line]
    assert abs(sum(shares) - 100) < 0.05


def test_data_is_json() -> None:
    data = json.loads(json.dumps(report_data(build_story(moments(EVENTS)))))
    assert sum(data["seconds"].values()) == data["wall_seconds"] == 86010
    assert data["incidents"][0]["steps_lost"] == 1
    assert {entry["what"] for entry in data["entries"]} >= {"started", "incident", "job_stopped"}


def test_without_steps_nothing_is_claimed() -> None:
    bare = [event for event in EVENTS if event["event"] not in ("resumed", "recovered")]
    whole = " ".join(report_lines(build_story(moments(bare))))
    assert "effective training time: not known" in whole
    assert "ranks ran; they do not say their steps" in whole


def test_the_wall_clock_may_be_set_back_but_time_goes_on() -> None:
    events = journal({"s": 500, "event": "job_started"}, {"s": 600, "event": "job_finished"},
                     {"s": 300, "event": "job_started"}, {"s": 310, "event": "job_finished"})  # fmt: skip
    line = moments(events)
    assert [moment.wall - line[0].wall for moment in line] == [0, 100, 100, 110]


def test_within_a_run_the_monotonic_clock_counts() -> None:
    events = journal({"s": 0, "event": "job_started"}, {"s": 10, "event": "job_finished"})
    events[1]["t"] = "2040-01-01T00:00:00.000Z"
    first, second = moments(events)
    assert second.wall - first.wall == 10


def test_events_without_their_clocks_are_passed_over() -> None:
    stamp = "2031-05-06T00:00:00.000Z"
    for clocks in ({}, {"t": "x", "mono": 1}, {"t": stamp, "mono": None}, {"t": stamp}, {"t": 5, "mono": 1}):
        assert moments([{"event": "a", "attempt": 0, **clocks}]) == []


def test_endings() -> None:
    assert ending(None) == "its supervisor ended without a word (killed?)"
    assert ending({"event": "job_finished", "code": 0}) == "done (exit code 0)"
    assert (
        ending({"event": "job_stopped", "code": 143, "step": -1})
        == "stopped (exit code 143), there was nothing to save"
    )
    assert ending({"event": "job_failed", "code": 1, "sentence": "why"}) == "failed (exit code 1): why"


def test_status() -> None:
    rank = {"rank": 0, "pid": 4711, "alive": True, "phase": "train", "step": 12, "beat_age": 0.02, "step_seconds": 0.5}
    silent = {
        "rank": 10,
        "pid": 4712,
        "alive": False,
        "phase": "startup",
        "step": -1,
        "beat_age": None,
        "step_seconds": None,
    }
    answer = {
        "job_id": "gpt", "state": "running", "attempt": 1, "restarts_left": 2, "max_restarts": 3, "committed": -1,
        "in_memory": 12, "ranks": [rank, silent],
    }  # fmt: skip
    assert status_lines(answer) == [
        "job gpt: running, attempt 1, 2 of 3 restarts left",
        "newest step of all ranks in memory: 12; committed to storage: -",
        "",
        "rank   pid  alive  phase  step  last beat  step time",
        "   0  4711    yes  train    12  20 ms ago     500 ms",
        "  10  4712     no      -     -          -          -",
    ]


def test_status_says_what_the_newest_resume_has_shown() -> None:
    answer = {"job_id": "x", "state": "running", "attempt": 1, "restarts_left": 3, "max_restarts": 3, "in_memory": 60,
              "committed": -1, "ranks": []}  # fmt: skip
    shown = "resumed at step 59: verified; the step made again was the same"
    assert status_lines(answer | {"resume": shown})[1:4] == [
        "newest step of all ranks in memory: 60; committed to storage: -", shown, "",
    ]  # fmt: skip
    assert status_lines(answer | {"resume": ""}) == status_lines(answer)


def test_where_the_autopsy_lies() -> None:
    said = {
        "sentence": "rank 1 is hung; it sleeps at train.py:88; restarting now",
        "autopsy": "/runs/x/autopsy/attempt_0",
    }
    events = journal(
        {"s": 0, "event": "job_started", "job_id": "gpt-1a2b", "ranks": 2},
        {"s": 65, "event": "incident", "rank": 1, "kind": "hang", "verdict": "restart", "step": 60, **said},
    )
    text = "\n".join(report_lines(build_story(moments(events))))
    assert "it sleeps at train.py:88" in text
    assert "autopsy: /runs/x/autopsy/attempt_0" in text
    answer = {"job_id": "x", "state": "running", "attempt": 1, "restarts_left": 3, "max_restarts": 3, "in_memory": 60,
              "committed": -1, "ranks": []}  # fmt: skip
    assert "last incident" not in "\n".join(status_lines(answer | {"last_incident": None}))
    assert status_lines(answer | {"last_incident": said})[2:4] == [
        f"last incident: {said['sentence']}", f"  its autopsy: {said['autopsy']}"
    ]  # fmt: skip
    killed = said | {"autopsy": None}
    assert not [line for line in status_lines(answer | {"last_incident": killed}) if "autopsy" in line]


def test_status_of_a_rank_that_has_not_attached() -> None:
    rank = {"rank": 0, "pid": 1, "alive": True, "phase": "train", "step": -1, "seen": 41, "beat_age": 0.1,
            "step_seconds": 0.5}  # fmt: skip
    answer = {"job_id": "gpt", "state": "running", "attempt": 0, "restarts_left": 3, "max_restarts": 3,
              "committed": -1, "in_memory": -1, "ranks": [rank]}  # fmt: skip
    assert "41 seen" in status_lines(answer)[-1]
    assert "41 seen" not in status_lines(answer | {"ranks": [rank | {"step": 3}]})[-1]


def test_a_start_by_jobset_says_how_often_jobset_has_started_the_pods() -> None:
    for told, said in (
        (2, "started; JobSet has started the pods again (2 restarts)"),
        (0, "started"),
        (None, "started"),
    ):
        events = journal({"s": 0, "event": "job_started", "job_id": "j", "ranks": 2, "jobset_restart": told})
        [line] = [line for line in report_lines(build_story(moments(events))) if "started" in line]
        assert line.strip().endswith(f"  {said}")
