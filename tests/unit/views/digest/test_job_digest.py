"""A journal to numbers: what it did, on which nodes, and only what was in the time that is asked for."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from ftlaunch.history import goodput
from ftlaunch.history.story import CLASSES, DOWN
from ftlaunch.history.timeline import moments
from ftlaunch.views.digest.job_digest import JobDigest, digest_of

BEGIN = 1_900_000_000.0
Line = dict[str, Any]


def at(when: float, event: str, attempt: int = 0, **fields: Any) -> Line:
    stamp = datetime.fromtimestamp(BEGIN + when, timezone.utc).isoformat().replace("+00:00", "Z")
    return {"t": stamp, "mono": when, "attempt": attempt, "event": event, **fields}


def failure(when: float, rank: int = 0, kind: str = "killed", signature: str = "a", **more: Any) -> Line:
    return at(when, "incident", rank=rank, kind=kind, signature=signature, verdict="restart", step=40, **more)


def life(hosts: list[str] | None = None) -> list[Line]:
    """100 s: a failure after 50 s, back after 5."""
    return [
        at(0, "job_started", job_id="j", ranks=4, host="login"),
        at(1, "attempt_started", pids=[1], hosts=hosts),
        at(2, "resumed", step=0),
        failure(50, host="n2" if hosts else None, since_progress=1.0),
        at(52, "attempt_started", 1, pids=[1], hosts=hosts),
        at(54, "resumed", 1, step=30, steps_lost=10),
        at(55, "recovered", 1, step=31, seconds=5),
        at(100, "progress", 1, step=80),
        at(100, "job_finished", 1, code=0, restarts=1),
    ]


def digest(events: list[Line], since: float = -1.0) -> JobDigest:
    found = digest_of("run", lambda: events, BEGIN + since)
    assert found is not None
    return found


def test_a_whole_journal_gives_what_the_report_of_the_run_gives() -> None:
    found, story = digest(life()), goodput.build_story(moments(life()))
    assert found.seconds == pytest.approx(story.seconds)
    assert sum(found.seconds.values()) == pytest.approx(100)
    assert (found.job_id, found.ranks, found.state, found.attempts) == ("j", 4, "done", 2)
    assert (found.incidents, dict(found.causes), found.steps_lost) == (1, {"killed": 1}, 10)


@pytest.mark.parametrize("since", [0.5, 30.0, 50.0, 53.0, 70.0, 99.5])
def test_the_time_before_does_not_count(since: float) -> None:
    found = digest(life(), since)
    assert sum(found.seconds.values()) == pytest.approx(100 - since)
    assert found.incidents == (since <= 50)
    assert found.steps_lost == (10 if since <= 54 else 0)
    assert found.begin == pytest.approx(BEGIN + since)
    assert all(seconds >= 0 for seconds in found.seconds.values())
    assert found.seconds.keys() == set(CLASSES)


def test_two_weeks_add_up_to_both() -> None:
    # `lost` is an estimate from the mean step, and each part has its own
    whole, later = digest(life()), digest(life(), 60.0)
    earlier = digest([*life()[:7], at(60, "progress", 1, step=36)])
    for name in CLASSES:
        assert earlier.seconds[name] + later.seconds[name] == pytest.approx(whole.seconds[name], abs=2.0), name


def test_nothing_of_that_time() -> None:
    assert digest_of("run", life, BEGIN + 101) is None
    assert digest_of("run", lambda: [], 0.0) is None


def test_one_node_is_the_supervisors_host() -> None:
    hosts = digest(life()).hosts
    assert list(hosts) == ["login"]
    assert hosts["login"].seconds == pytest.approx(99)
    assert (hosts["login"].failures, dict(hosts["login"].causes)) == (1, {"killed": 1})


def test_several_nodes_share_the_time_and_one_has_the_failure() -> None:
    hosts = digest(life(["n1", "n2", "n3"])).hosts
    assert sorted(hosts) == ["n1", "n2", "n3"]
    assert [host.seconds for host in hosts.values()] == [pytest.approx(99)] * 3
    assert [hosts[name].failures for name in ("n1", "n2", "n3")] == [0, 1, 0]


def test_an_older_journal_of_several_nodes_blames_nobody() -> None:
    """It has neither hosts nor pids: the host of its `job_started` is the head's."""
    events = [{**event, "pids": None} if event["event"] == "attempt_started" else event for event in life()]
    for event in events:
        event.pop("hosts", None)
        event.pop("host", None) if event["event"] == "incident" else None
    hosts = digest(events).hosts
    assert list(hosts) == [""]
    assert hosts[""].causes.total() == 1


def test_what_the_script_does_wrong_is_no_failure_of_a_node() -> None:
    events = life()
    events[3] = failure(50, kind="exception")
    hosts = digest(events).hosts
    assert (hosts["login"].failures, hosts["login"].causes.total()) == (0, 1)


def test_the_same_again_before_any_step_counts_once_for_the_node() -> None:
    """Taken out by hand: without `_last_failure` in hosts.py a crash loop of one fault names its node."""
    loop = [failure(50 + n / 10) for n in range(5)]
    events = [*life()[:3], *loop, failure(51, signature="b"), *life()[4:]]
    hosts = digest(events).hosts
    assert (hosts["login"].failures, hosts["login"].causes.total()) == (2, 6)


def test_a_job_without_an_end_is_open_and_down_time_is_told_apart() -> None:
    again = [
        at(500, "job_started", job_id="j", ranks=4, host="login"),
        at(510, "attempt_started", pids=[1], hosts=None),
    ]
    found = digest([*life(), *again])
    assert found.state == "open"
    assert found.seconds[DOWN] == pytest.approx(400)
    assert found.hosts["login"].seconds == pytest.approx(99)
