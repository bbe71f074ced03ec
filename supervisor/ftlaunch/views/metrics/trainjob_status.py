"""Turns a reading into the request that reports a job's progress to Kubeflow's Trainer. Pure.

The body is `UpdateTrainJobStatusRequest` of Trainer's API (trainer.kubeflow.org/v1alpha1, since 2.2): percentage,
remaining seconds, and metrics whose values are texts.
"""

from __future__ import annotations

import time
from math import isfinite
from statistics import median
from typing import Any

from ftlaunch.history.goodput_shares import WHOLE_JOB
from ftlaunch.views.metrics.reading import JobReading

_MAX_VALUE = 64  # characters of a value that Trainer accepts
_MAX_SECONDS = (1 << 31) - 1
_DONE = "done"


def status_of(reading: JobReading, before: dict[str, Any]) -> dict[str, Any]:
    """Return the `trainerStatus` of a job without its time. Unknown values are left out.

    Args:
        reading: the reading.
        before: the status that was reported last, which stays the status of a job that was stopped or given up.
    """
    state = reading.tally.state
    if state:
        metrics = before.get("metrics") or _metrics(reading)
        done = {"progressPercentage": 100, "estimatedRemainingSeconds": 0, "metrics": metrics}
        return done if state == _DONE else before
    total = reading.total_steps
    completed = reading.completed
    found: dict[str, Any] = {}
    if total is not None and total > 0 and completed >= 0:
        # 100 means the end; the last checkpoint may still have to be saved.
        found["progressPercentage"] = min(100 * completed // total, 99)
        if (times := reading.step_seconds) is not None:
            _, median_step, _ = times
            found["estimatedRemainingSeconds"] = min(int((total - completed) * median_step), _MAX_SECONDS)
    return found | {"metrics": _metrics(reading)}


def request_of(status: dict[str, Any], now: float) -> dict[str, Any]:
    """Return the body of the request. now: seconds since the epoch."""
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
        {"name": name, "value": f"{value:.6g}" if isinstance(value, float) else str(value)[:_MAX_VALUE]}
        for name, value in values.items()
        if value is not None
    ]
