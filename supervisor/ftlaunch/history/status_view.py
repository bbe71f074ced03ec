"""What `ftctl status` prints of a running job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftlaunch.common.formatting import duration, table
from ftlaunch.history.nodes_view import asked_on


def status_lines(answer: Mapping[str, Any]) -> list[str]:
    """A running supervisor's answer as `ftctl status` prints it."""
    lines = [
        *asked_on(answer),
        f"job {answer['job_id']}: {answer['state']}, attempt {answer['attempt']}, "
        f"{answer['restarts_left']} of {answer['max_restarts']} restarts left",
        f"newest step of all ranks in memory: {_step(answer['in_memory'])}; "
        f"committed to storage: {_step(answer['committed'])}",
        "",
    ]
    last = answer.get("last_incident")
    if last is not None:
        lines[-1:] = [f"last incident: {last['sentence']}", *_lying(last), ""]
    rows = [("rank", "pid", "alive", "phase", "step", "last beat", "step time")]
    for rank in answer["ranks"]:
        age, seconds = rank["beat_age"], rank["step_seconds"]
        rows.append(
            (
                str(rank["rank"]),
                str(rank["pid"]),
                "yes" if rank["alive"] else "no",
                rank["phase"] if age is not None else "-",
                _step_of(rank),
                "-" if age is None else f"{duration(age)} ago",
                duration(seconds) if seconds else "-",
            )
        )
    slow = answer.get("slow", [])
    return [*lines, *table(rows), *([""] if slow else []), *slow]


def _lying(incident: Mapping[str, Any]) -> list[str]:
    return [f"  its autopsy: {incident['autopsy']}"] if incident["autopsy"] else []


def _step_of(rank: Mapping[str, Any]) -> str:
    """A rank's step; of one that has not attached, how many optimizer steps were seen."""
    seen = rank.get("seen", 0)
    return f"{seen} seen" if rank["step"] < 0 and seen else _step(rank["step"])


def _step(step: int) -> str:
    return str(step) if step >= 0 else "-"
