"""Formats what `ftctl status` prints, for a running job and for a job that has ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ftlaunch.common.formatting import duration, table
from ftlaunch.history.nodes_view import asked_on
from ftlaunch.history.report_view import ending
from ftlaunch.history.runs import Run
from ftlaunch.history.timeline import epoch_seconds
from ftlaunch_contract.protocol import EXIT_SAVED


def status_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return a running supervisor's answer as `ftctl status` prints it, line by line.

    Args:
        answer: the reply on the control socket.
    """
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
        lines[-1:] = [f"last incident: {last['sentence']}", *_autopsy_lines(last), ""]
    if resume := answer.get("resume"):
        lines[-1:] = [str(resume), ""]
    rows = [("rank", "pid", "alive", "phase", "step", "last beat", "step time")]
    for rank in answer["ranks"]:
        age = rank["beat_age"]
        seconds = rank["step_seconds"]
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
    notes = [*answer.get("slow", []), *_failed_calls(answer)]
    return [*lines, *table(rows), *([""] if notes else []), *notes]


def _failed_calls(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence on each purpose for which calls have failed."""
    for what, count in answer.get("failed_calls", {}).items():
        times = "once" if count == 1 else f"{count} times"
        yield f"could not {what}, {times}; the job has gone on (`call_failed` in its journal says why)"


def _autopsy_lines(incident: Mapping[str, Any]) -> list[str]:
    """Return a line on the autopsy of an incident; none if there is no autopsy."""
    return [f"  its autopsy: {incident['autopsy']}"] if incident["autopsy"] else []


def _step_of(rank: Mapping[str, Any]) -> str:
    """Format a rank's step, or the number of its optimizer steps if the rank has not attached."""
    seen = rank.get("seen", 0)
    return f"{seen} seen" if rank["step"] < 0 and seen else _step(rank["step"])


def _step(step: int) -> str:
    """Format a step; a negative one is unknown."""
    return str(step) if step >= 0 else "-"


def not_running(run: Run) -> str:
    """Say how a job that is not running has ended, how to go on with it, and where to read more."""
    return "; ".join([ending(run.end), *_what_next(run)])


def _what_next(run: Run) -> Iterator[str]:
    """Yield parts of a sentence on how to go on with a job that is not running."""
    end = run.end
    if end is None:
        yield "the same command starts it again, from the newest step that is left"
    elif end["event"] == "job_stopped" and end.get("code") == EXIT_SAVED:
        yield "the same command goes on from there"
    if log := _terminal_log(run):
        yield f"what it said is in {log}"
    yield f"`ftctl report {run.job_id}` tells what happened"


def _terminal_log(run: Run) -> str:
    """Return the file with the terminal output of the newest run; empty if that run was not detached."""
    try:
        since = epoch_seconds(run.start["t"])
        written = {path.stat().st_mtime: str(path) for path in run.run_dir.glob("terminal*.log")}
    except (OSError, KeyError, ValueError):
        return ""
    newest = max(written, default=0.0)
    return written[newest] if newest >= since else ""
