"""Formats checks as text for a person, and as data for `--json`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ftlaunch.common.formatting import duration
from ftlaunch.tools.preflight.rules import Check, could_run

_SHOWN = {"ok": "ok", "warn": "warn", "bad": "BAD", "skip": "-"}


def lines(checks: Sequence[Check], seconds: float) -> list[str]:
    """Return a line for each check, and the verdict. seconds: how long the checks took."""
    width = max(len(check.name) for check in checks)
    rows = []
    for check in checks:
        advice = f": {check.advice}" if check.advice else ""
        rows.append(f"{_SHOWN[check.status]:<4}  {check.name:<{width}}  {check.found}{advice}")
    return [*rows, f"{verdict(checks)} (checked in {duration(seconds)})"]


def verdict(checks: Sequence[Check]) -> str:
    """Return one sentence about all checks."""
    bad = [check.name for check in checks if check.status == "bad"]
    if bad:
        return f"the job could not run: {', '.join(bad)}"
    warned = [check.name for check in checks if check.status == "warn"]
    return "the job could run" + (f"; have a look at: {', '.join(warned)}" if warned else "")


def data(checks: Sequence[Check], seconds: float, job_id: str) -> dict[str, Any]:
    """Return the checks for `--json`. seconds: how long the checks took."""
    rows = [asdict(check) for check in checks]
    return {"job_id": job_id, "could_run": could_run(checks), "seconds": round(seconds, 3), "checks": rows}
