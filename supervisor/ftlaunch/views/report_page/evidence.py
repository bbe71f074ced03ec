"""What a run dir has of one incident besides the journal: the end of the rank's log, and the autopsy."""

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
        told["lines"] = files.made_of(path, lambda text: words.lines(text, LOG_LINES), _LOG_BYTES, end=True)
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
    about = incident.rank, str(cause).strip()
    try:
        return files.made_of(
            directory / "verdict.txt",
            lambda verdict: told | _drawn(files, directory, about, verdict.strip(), words),
            _MOST_BYTES,
            also=about,
        )
    except OSError as error:
        return {**told, "note": f"{_refusal(error)}; the newest ten of a job are kept"}


def _drawn(files: RunFiles, directory: Path, about: tuple[int, str], verdict: str, words: SafeText) -> dict[str, Any]:
    """Verdict, groups and edges, or a note. about: the rank and the cause of the incident. Raises OSError."""
    rank, cause = about
    if verdict != cause:
        return {"note": "the files there are of another hang, which had an attempt of the same number"}
    told: dict[str, Any] = {"verdict": words.line(verdict)}
    found = [int(match[1]) for path in directory.iterdir() if (match := _STACK.fullmatch(path.name))]
    shown = sorted({*sorted(found)[:MOST_DUMPS], *({rank} & set(found))})
    notes = []
    if len(found) > len(shown):
        notes.append(f"{len(shown)} of {len(found)} ranks are looked at: the lowest, and the culprit")
    read = partial(files.text, most=_MOST_BYTES)
    try:
        graph = wait_graph(rank, {one: read_dump(directory, one, read) for one in shown}, words)
    except (AttributeError, KeyError, TypeError, ValueError):  # JSON of other kinds than an autopsy writes
        return {**told, "note": "the files there are not as an autopsy writes them"}
    if undrawn := graph.pop("undrawn"):
        notes.append(f"{undrawn} of them {'does' if undrawn == 1 else 'do'} something else than those drawn")
    return told | graph | {"note": "; ".join(notes)}


def _refusal(error: OSError) -> str:
    return f"cannot read it: {str(error.strerror).lower()}"
