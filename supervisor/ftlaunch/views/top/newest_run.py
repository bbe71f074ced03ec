"""Finds the newest run in a journal with little memory, because a journal of months has hundreds of megabytes."""

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
"""names of the events that begin and end a run"""
_WORD = b'"job_'  # part of the line of each mark
_NAME = re.compile(r'"event": "(\w+)"')  # twenty times as fast as parsing the line


def newest_run(run_dir: Path) -> Run:
    """Return the newest run of a run dir; its events are only the marks of that run.

    Raises:
        CannotFind: the journal cannot be read.
    """
    try:
        with open_journal(run_dir) as file:
            lines = iter(lambda: file.readline(LONGEST_LINE), b"")
            events = (parsed(line) for line in lines if _WORD in line)
            return Run(run_dir, of_newest(event for event in events if event is not None))
    except OSError as error:
        raise unreadable(run_dir / EVENTS, error) from error


def of_newest(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the marks of the newest run among some events."""
    kept: list[Mapping[str, Any]] = []
    for event in events:
        if event["event"] == "job_started":
            kept = []
        if event["event"] in MARKS:
            kept.append(event)
    return kept


def event_name(line: str) -> str:
    """Return the name of a line's event without parsing the line; empty if the line is no event."""
    found = _NAME.search(line)
    return found[1] if found else ""


def parsed(line: str | bytes) -> dict[str, Any] | None:
    """Parse the event of a line; None if a crash has torn the line."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
