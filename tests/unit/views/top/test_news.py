"""Lines of the journal as sentences."""

from __future__ import annotations

from typing import Any

import pytest

from ftlaunch.views.top.news import news_of


def told(event: str, **fields: Any) -> str | None:
    news = news_of({"t": "2031-01-02T03:04:05.000Z", "attempt": 1, "event": event, **fields})
    return None if news is None else f"{news.at} {'!' if news.grave else ' '} {news.sentence}"


@pytest.mark.parametrize(
    ("event", "fields", "sentence"),
    [
        ("attempt_started", {"pids": None, "port": 1}, "03:04:05   attempt 1 has begun"),
        ("rank_exited", {"rank": 3, "code": None, "signal": "SIGKILL"}, "03:04:05   rank 3 has ended by SIGKILL"),
        ("rank_exited", {"rank": 3, "code": 1, "signal": None}, "03:04:05   rank 3 has ended with exit code 1"),
        ("incident", {"sentence": "rank 1 died", "autopsy": None}, "03:04:05 ! incident: rank 1 died"),
        (
            "incident",
            {"sentence": "", "cause": "rank 1\nhangs\x1b[2J", "autopsy": "/a"},
            "03:04:05 ! incident: rank 1 hangs\\x1b[2J; autopsy in /a",
        ),
        (
            "resumed",
            {"step": 7, "source": "memory", "steps_lost": 2},
            "03:04:05   all ranks have their state: step 7 from memory, 2 steps lost (8 to 9, which all ranks had"
            " completed)",
        ),
        (
            "checkpoint_committed",
            {"step": 7, "bytes": 1 << 30, "seconds": 2.0},
            "03:04:05   step 7 is on storage: 1.0 GiB in 2.0 s",
        ),
        ("resume_verified", {"sentence": "resumed at step 7: verified"}, "03:04:05   resumed at step 7: verified"),
        ("resume_unverified", {"sentence": "not verified"}, "03:04:05   not verified"),
        ("resume_differs", {"sentence": "the resumed run differs"}, "03:04:05 ! the resumed run differs"),
        ("node_joined", {"host": "a", "address": "10.0.0.1"}, "03:04:05   a node has joined: a (10.0.0.1)"),
        ("node_placed", {"place": 1}, "03:04:05   a node has taken place 1"),
        ("node_placed", {"place": -1}, "03:04:05   a node stands by from now on"),
        ("node_left", {"place": 1, "why": "it was silent"}, "03:04:05   node 1 has left the job: it was silent"),
        ("job_finished", {"code": 0}, "03:04:05   the job has ended: done (exit code 0)"),
    ],
)
def test_what_people_are_told(event: str, fields: dict[str, Any], sentence: str) -> None:
    assert told(event, **fields) == sentence


def test_what_tells_people_nothing_has_no_sentence() -> None:
    assert told("progress", step=3) is None
    assert told("rank_exited", rank=0, code=0, signal=None) is None
    commit = {"step": 7, "bytes": 1, "seconds": 2.0}
    assert told("checkpoint_committed", why="interval", **commit) is None, "they would push incidents off the screen"
    assert told("checkpoint_committed", why="stop", **commit) is not None
    assert told("an event of a later version") is None


def test_a_line_of_another_version_is_no_end_of_the_view() -> None:
    said = "03:04:05 ! incident (its line in the journal cannot be understood)"
    assert told("incident") == said
    assert told("checkpoint_committed", step=1, bytes="many", seconds=0) is not None
