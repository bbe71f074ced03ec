"""What Kubeflow's Trainer is told of a job's progress: a reading in, the body of a request out. Pure.

The body is `UpdateTrainJobStatusRequest` of Trainer's API (trainer.kubeflow.org/v1alpha1, since 2.2): percents, seconds
that are left, and metrics whose values are texts.
"""

from __future__ import annotations

import time
from math import isfinite
from statistics import median
from typing import Any

from ftlaunch.history.goodput_shares import WHOLE_JOB
from ftlaunch.views.metrics.reading import JobReading

_LONGEST = 64  # characters of a value that Trainer takes
_MOST_SECONDS = (1 << 31) - 1
_DONE = "done"


def status_of(reading: JobReading, before: dict[str, Any]) -> dict[str, Any]:
    """Return the `trainerStatus` of a job, without its time. What is not known is left out.

    before: the status that was told last. A job that has stopped, or was given up, stands where it stood then.
    """
    state = reading.tally.state
    if state:
        metrics = before.get("metrics") or _metrics(reading)
        done = {"progressPercentage": 100, "estimatedRemainingSeconds": 0, "metrics": metrics}
        return done if state == _DONE else before
    total, completed = reading.total_steps, reading.completed
    found: dict[str, Any] = {}
    if total is not None and total > 0 and completed >= 0:
        # 100 is kept for the end: the last checkpoint may still have to be saved
        found["progressPercentage"] = min(100 * completed // total, 99)
        if (times := reading.step_seconds) is not None:
            _, middle, _ = times
            found["estimatedRemainingSeconds"] = min(int((total - completed) * middle), _MOST_SECONDS)
    return found | {"metrics": _metrics(reading)}


def request_of(status: dict[str, Any], now: float) -> dict[str, Any]:
    """Return the body of the request. now: seconds of the epoch."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    return {"trainerStatus": {**status, "lastUpdatedTime": stamp}}


def _metrics(reading: JobReading) -> list[dict[str, str]]:
    tally = reading.tally
    losses = [rank.loss for rank in reading.ranks if isfinite(rank.loss)]
    values: dict[str, float | int | None] = {
        "step": reading.completed if reading.completed >= 0 else None,
        "loss": median(losses) if losses else None,
        "restarts": tally.restarts.total(),
        "goodput": reading.goodput.shares.get(WHOLE_JOB),
        "restart_attempt": tally.jobset_restart,
    }
    return [
        {"name": name, "value": f"{value:.6g}" if isinstance(value, float) else str(value)[:_LONGEST]}
        for name, value in values.items()
        if value is not None
    ]
