"""The findings of `ftctl check` as a person, or a program, reads them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ftlaunch.common.formatting import duration
from ftlaunch.tools.preflight.rules import Check, could_run

_SHOWN = {"ok": "ok", "warn": "warn", "bad": "BAD", "skip": "-"}


def lines(findings: Sequence[Check], seconds: float) -> list[str]:
    """A line a check, and the verdict."""
    width = max(len(finding.name) for finding in findings)
    rows = []
    for finding in findings:
        advice = f": {finding.advice}" if finding.advice else ""
        rows.append(f"{_SHOWN[finding.status]:<4}  {finding.name:<{width}}  {finding.found}{advice}")
    return [*rows, f"{verdict(findings)} (checked in {duration(seconds)})"]


def verdict(findings: Sequence[Check]) -> str:
    """One sentence."""
    bad = [finding.name for finding in findings if finding.status == "bad"]
    if bad:
        return f"the job could not run: {', '.join(bad)}"
    warned = [finding.name for finding in findings if finding.status == "warn"]
    return "the job could run" + (f"; have a look at: {', '.join(warned)}" if warned else "")


def data(findings: Sequence[Check], seconds: float, job_id: str) -> dict[str, Any]:
    """For --json."""
    checks = [asdict(finding) for finding in findings]
    return {"job_id": job_id, "could_run": could_run(findings), "seconds": round(seconds, 3), "checks": checks}
