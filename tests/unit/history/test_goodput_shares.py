"""The share of the wall time that made steps, of a whole job and of its newest hours."""

from __future__ import annotations

from typing import Any

import pytest

from ftlaunch.history import goodput
from ftlaunch.history.goodput_shares import goodput_of
from ftlaunch.history.timeline import Moment


def moment(second: float, event: str, attempt: int = 0, **fields: Any) -> Moment:
    return Moment(1e9 + second, event, attempt, {"mono": second, **fields})


def trained_until(end: float) -> list[Moment]:
    """Steps of a second from second 100 on; at second 1,000 a rank is killed, and 50 steps are lost."""
    told = {"rank": 1, "kind": "killed", "verdict": "restart", "since_progress": 0.0, "sentence": ""}
    return [
        moment(0, "job_started", job_id="j", ranks=2),
        moment(1, "attempt_started"),
        moment(100, "resumed", step=0, source=None, steps_lost=None),
        moment(1000, "progress", step=900),
        moment(1000, "incident", step=900, **told),
        moment(1050, "attempt_started", 1),
        moment(1090, "resumed", 1, step=850, source="memory", steps_lost=50),
        moment(1100, "recovered", 1, step=851),
        moment(end, "progress", 1, step=851 + int(end - 1100)),
    ]


def test_the_share_of_the_whole_job_is_that_of_the_report() -> None:
    moments = trained_until(5000)
    story = goodput.build_story(moments)
    found = goodput_of(moments)
    assert found.seconds == story.seconds
    assert found.shares["job"] == story.effective


def test_intervals_forget_what_lies_behind_them() -> None:
    """Taken out (the whole job alone): an alert on the newest hour cannot see that hour."""
    shares = goodput_of(trained_until(1200)).shares
    mean = (900 + 100) / (900 + 100)
    assert shares["5m"] == pytest.approx((100 + 100 - 50 * mean) / 300)
    assert shares["1h"] == shares["24h"] == shares["job"] == pytest.approx((900 + 100 - 50 * mean) / 1200)
    later = goodput_of(trained_until(1500)).shares
    assert later["5m"] == 1.0
    assert later["1h"] < 1.0
    assert goodput_of(trained_until(6000)).shares["1h"] == 1.0


def test_steps_that_nobody_tells_have_no_share() -> None:
    blind = [moment(0, "job_started", job_id="j", ranks=2), moment(1, "attempt_started"), moment(500, "now")]
    assert goodput_of(blind).shares == {}
    down = [moment(0, "job_started", job_id="j", ranks=2)]
    assert goodput_of(down).shares == {}
