"""What Kubeflow's Trainer is told of a reading."""

from __future__ import annotations

from math import nan
from typing import Any

from tests.unit.views.metrics.test_registry import START, reading

from ftlaunch.views.metrics.reading import JobReading, RankReading
from ftlaunch.views.metrics.tally import Tally
from ftlaunch.views.metrics.trainjob_status import request_of, status_of
from ftlaunch_contract.pages.words import ENDLESS
from ftlaunch_contract.protocol import Phase


def trained(steps: tuple[int, ...], total: int = 100, loss: float = 0.25, **more: Any) -> JobReading:
    ranks = [
        RankReading(rank, step, 0.5, 90.0, Phase.TRAIN, 0, 0, total=total, loss=loss) for rank, step in enumerate(steps)
    ]
    return JobReading(**{**vars(reading()), "ranks": ranks, **more})


def ended(event: str) -> Tally:
    tally = Tally(())
    for line in (START, {**START, "event": event, "code": 0}):
        tally.apply(line)
    return tally


def names(status: dict[str, Any]) -> dict[str, str]:
    return {metric["name"]: metric["value"] for metric in status["metrics"]}


def test_percent_and_seconds_follow_from_the_slowest_rank() -> None:
    status = status_of(trained((40, 41, 42)), {})
    assert (status["progressPercentage"], status["estimatedRemainingSeconds"]) == (40, 30)
    assert names(status) == {"step": "40", "loss": "0.25", "restarts": "0", "goodput": "0.5"}
    assert status_of(trained((100, 100, 100)), {})["progressPercentage"] == 99


def test_what_is_not_known_is_left_out() -> None:
    for total in (0, ENDLESS, ENDLESS + 5):
        status = status_of(trained((40, 41, 42), total, nan), {})
        assert "progressPercentage" not in status
        assert "loss" not in names(status)
    assert names(status_of(reading(ranks=0), {})) == {"restarts": "0", "goodput": "0.5"}


def test_a_job_that_is_done_is_at_100_and_another_end_leaves_what_was_told() -> None:
    before = status_of(trained((40, 41, 42)), {})
    done = status_of(trained((), tally=ended("job_finished")), before)
    assert (done["progressPercentage"], done["estimatedRemainingSeconds"]) == (100, 0)
    assert done["metrics"] == before["metrics"]
    for end in ("job_stopped", "job_failed"):
        assert status_of(trained((), tally=ended(end)), before) == before


def test_values_are_short_texts() -> None:
    status = status_of(trained((40, 41, 42), loss=1.23456789e-12), {})
    assert names(status)["loss"] == "1.23457e-12"
    assert all(0 < len(value) <= 64 for value in names(status).values())
    told = request_of(status, 0.0)
    assert told["trainerStatus"]["lastUpdatedTime"] == "1970-01-01T00:00:00Z"
