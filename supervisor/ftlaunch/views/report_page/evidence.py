"""Reads the evidence of an incident from a run dir: the end of the rank's log, and the autopsy of a hang."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

from ftlaunch.autopsy.client import read_dump
from ftlaunch.history.story import Incident
from ftlaunch.ranks.log_files import log_path
from ftlaunch.views.report_page.run_files import RunFiles
from ftlaunch.views.report_page.wait_graph import wait_graph
from ftlaunch.views.report_page.words import SafeText

LOG_LINES = 30
MOST_DUMPS = 64
_ATTEMPT = re.compile(r"attempt_\d+")
_STACK = re.compile(r"rank_(\d+)\.stack\.txt")
_MAX_BYTES = 4 << 20  # read of one file of an autopsy
_LOG_BYTES = 64 << 10  # read from the end of a log


def log_excerpt(
    files: RunFiles, log_dir: Path, incident: Incident, words: SafeText, *, stale: bool
) -> dict[str, Any] | None:
    """Return the last lines of the rank's log, or a note why there are none; None for an incident of no single rank.

    Args:
        files: reads files of the run dir.
        log_dir: the directory of the logs.
        incident: the incident.
        words: makes texts fit for the page.
        stale: whether another process has written to the log since, so that the end is not about this incident.
    """
    if incident.rank < 0:
        return None
    path = log_path(log_dir, incident.attempt, incident.rank)
    excerpt: dict[str, Any] = {"path": words.line(path, 500), "lines": [], "note": ""}
    if stale:
        excerpt["note"] = "a later process has written to this log since: its end is not of this incident"
        return excerpt
    try:
        excerpt["lines"] = files.made_of(path, lambda text: words.lines(text, LOG_LINES), _LOG_BYTES, end=True)
    except FileNotFoundError:
        return {**excerpt, "note": "it is not there (any more)"}
    except OSError as error:
        return {**excerpt, "note": _refusal(error)}
    return excerpt if excerpt["lines"] else {**excerpt, "note": "it is empty"}


def autopsy(
    files: RunFiles, run_dir: Path, incident: Incident, cause: object, words: SafeText
) -> dict[str, Any] | None:
    """Return what the autopsy of a hang has found, as a graph of who waits for whom; None if there was no autopsy.

    Args:
        files: reads files of the run dir.
        run_dir: the run dir.
        incident: the incident.
        cause: the cause in the journal, which the files of the autopsy must confirm.
        words: makes texts fit for the page.
    """
    if not incident.autopsy:
        return None
    name = Path(str(incident.autopsy)).name
    directory = run_dir / "autopsy" / name
    found: dict[str, Any] = {"path": words.line(directory, 500), "note": "", "verdict": "", "groups": [], "edges": []}
    if not _ATTEMPT.fullmatch(name):
        return {**found, "note": "the journal names no directory of an autopsy"}
    culprit = incident.rank
    expected = str(cause).strip()
    try:
        return files.made_of(
            directory / "verdict.txt",
            lambda verdict: (
                found | _drawn(files, directory, culprit=culprit, cause=expected, verdict=verdict.strip(), words=words)
            ),
            _MAX_BYTES,
            also=(culprit, expected),
        )
    except OSError as error:
        return {**found, "note": f"{_refusal(error)}; the newest ten of a job are kept"}


def _drawn(files: RunFiles, directory: Path, culprit: int, cause: str, verdict: str, words: SafeText) -> dict[str, Any]:
    """Return verdict, groups and edges, or a note why there is no graph.

    Args:
        files: reads files of the run dir.
        directory: the directory of the autopsy.
        culprit: the rank of the incident.
        cause: the cause of the incident, by the journal.
        verdict: the verdict of the autopsy, by its file.
        words: makes texts fit for the page.

    Raises:
        OSError: a file cannot be read.
    """
    if verdict != cause:
        return {"note": "the files there are of another hang, which had an attempt of the same number"}
    result: dict[str, Any] = {"verdict": words.line(verdict)}
    found = [int(match[1]) for path in directory.iterdir() if (match := _STACK.fullmatch(path.name))]
    shown = sorted({*sorted(found)[:MOST_DUMPS], *({culprit} & set(found))})
    notes = []
    if len(found) > len(shown):
        notes.append(f"{len(shown)} of {len(found)} ranks are looked at: the lowest, and the culprit")
    read = partial(files.text, most=_MAX_BYTES)
    try:
        graph = wait_graph(culprit, {rank: read_dump(directory, rank, read) for rank in shown}, words)
    except ValueError:  # JSON of another form than an autopsy writes
        return {**result, "note": "the files there are not as an autopsy writes them"}
    if undrawn := graph.pop("undrawn"):
        notes.append(f"{undrawn} of them {'does' if undrawn == 1 else 'do'} something else than those drawn")
    return result | graph | {"note": "; ".join(notes)}


def _refusal(error: OSError) -> str:
    return f"cannot read it: {str(error.strerror).lower()}"
