"""The newest run of a job, read from its journal in little memory: a journal of months has hundreds of megabytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ftlaunch.common.line_splitter import LONGEST_LINE
from ftlaunch.history.journal import EVENTS, open_journal
from ftlaunch.history.runs import Run, unreadable

MARKS = frozenset({"job_started", "job_finished", "job_stopped", "job_failed"})
"""the events that a run begins and ends with"""
_WORD = b'"job_'  # in the line of each of them
_NAME = re.compile(r'"event": "(\w+)"')  # parsing a line takes twenty times as long


def newest_run(run_dir: Path) -> Run:
    """The run dir, with the marks of its newest run for events. Raises CannotFind where it cannot be read."""
    try:
        with open_journal(run_dir) as file:
            lines = iter(lambda: file.readline(LONGEST_LINE), b"")
            events = (parsed(line) for line in lines if _WORD in line)
            return Run(run_dir, of_newest(event for event in events if event is not None))
    except OSError as error:
        raise unreadable(run_dir / EVENTS, error) from error


def of_newest(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of these events the marks of the newest run."""
    kept: list[Mapping[str, Any]] = []
    for event in events:
        if event["event"] == "job_started":
            kept = []
        if event["event"] in MARKS:
            kept.append(event)
    return kept


def event_name(line: str) -> str:
    """The name of the event of a line, as journals write it; empty: the line is no event."""
    found = _NAME.search(line)
    return found[1] if found else ""


def parsed(line: str | bytes) -> dict[str, Any] | None:
    """The event of a line; None where a crash has torn it."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
