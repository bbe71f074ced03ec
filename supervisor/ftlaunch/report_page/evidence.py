"""What a run dir has of one incident besides the journal: the end of the rank's log, and the autopsy."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

from ftlaunch.autopsy.client import read_dump
from ftlaunch.history.story import Incident
from ftlaunch.ranks.log_files import log_path
from ftlaunch.report_page.run_files import RunFiles
from ftlaunch.report_page.wait_graph import wait_graph
from ftlaunch.report_page.words import SafeText

LOG_LINES = 30
MOST_DUMPS = 64
_ATTEMPT = re.compile(r"attempt_\d+")
_STACK = re.compile(r"rank_(\d+)\.stack\.txt")
_MOST_BYTES = 4 << 20  # of one file of an autopsy
_LOG_BYTES = 64 << 10


def log_excerpt(
    files: RunFiles, log_dir: Path, incident: Incident, words: SafeText, *, stale: bool
) -> dict[str, Any] | None:
    """The last lines of the rank's log of that attempt; None where the incident is not of one rank.

    stale: another process has written to that log since, so that its end tells nothing of this incident.
    """
    if incident.rank < 0:
        return None
    path = log_path(log_dir, incident.attempt, incident.rank)
    told: dict[str, Any] = {"path": words.line(path, 500), "lines": [], "note": ""}
    if stale:
        told["note"] = "a later process has written to this log since: its end is not of this incident"
        return told
    try:
        told["lines"] = words.lines(files.text(path, _LOG_BYTES, end=True), LOG_LINES)
    except FileNotFoundError:
        return {**told, "note": "it is not there (any more)"}
    except OSError as error:
        return {**told, "note": _refusal(error)}
    return told if told["lines"] else {**told, "note": "it is empty"}


def autopsy(
    files: RunFiles, run_dir: Path, incident: Incident, cause: object, words: SafeText
) -> dict[str, Any] | None:
    """What the autopsy of a hang has found, drawn as who waits for whom; None where there was none."""
    if not incident.autopsy:
        return None
    name = Path(str(incident.autopsy)).name
    directory = run_dir / "autopsy" / name
    told: dict[str, Any] = {"path": words.line(directory, 500), "note": "", "verdict": "", "groups": [], "edges": []}
    if not _ATTEMPT.fullmatch(name):
        return {**told, "note": "the journal names no directory of an autopsy"}
    try:
        verdict = files.text(directory / "verdict.txt", _MOST_BYTES).strip()
        found = [int(match[1]) for path in directory.iterdir() if (match := _STACK.fullmatch(path.name))]
    except OSError as error:
        return {**told, "note": f"{_refusal(error)}; the newest ten of a job are kept"}
    if verdict != str(cause).strip():
        return {**told, "note": "the files there are of another hang, which had an attempt of the same number"}
    told["verdict"] = words.line(verdict)
    shown = sorted({*sorted(found)[:MOST_DUMPS], *({incident.rank} & set(found))})
    if len(found) > len(shown):
        told["note"] = f"{len(shown)} of {len(found)} ranks are drawn"
    read = partial(files.text, most=_MOST_BYTES)
    try:
        return told | wait_graph(incident.rank, {rank: read_dump(directory, rank, read) for rank in shown}, words)
    except (AttributeError, KeyError, TypeError, ValueError):  # JSON of other kinds than an autopsy writes
        return {**told, "note": "the files there are not as an autopsy writes them"}


def _refusal(error: OSError) -> str:
    return f"cannot read it: {str(error.strerror).lower()}"
