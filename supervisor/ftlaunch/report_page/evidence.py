"""What a run dir has of one incident besides the journal: the end of the rank's log, and the autopsy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ftlaunch.autopsy.client import read_dump
from ftlaunch.history.story import Incident
from ftlaunch.ranks.log_files import log_path, tail
from ftlaunch.report_page.wait_graph import wait_graph
from ftlaunch.report_page.words import SafeText

LOG_LINES = 30
MOST_DUMPS = 64
_ATTEMPT = re.compile(r"attempt_\d+")
_STACK = re.compile(r"rank_(\d+)\.stack\.txt")
_MOST_BYTES = 4 << 20  # of one file of an autopsy


def log_excerpt(log_dir: Path, incident: Incident, words: SafeText, *, stale: bool) -> dict[str, Any] | None:
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
        told["lines"] = words.lines(tail(path), LOG_LINES)
    except OSError as error:
        told["note"] = f"cannot read it: {error.strerror}"
        return told
    if not told["lines"]:
        told["note"] = "it is empty" if path.exists() else "it is not there (any more)"
    return told


def autopsy(run_dir: Path, incident: Incident, cause: object, words: SafeText) -> dict[str, Any] | None:
    """What the autopsy of a hang has found, drawn as who waits for whom; None where there was none."""
    if not incident.autopsy:
        return None
    name = Path(str(incident.autopsy)).name
    directory = run_dir / "autopsy" / name
    told: dict[str, Any] = {"path": words.line(directory, 500), "note": "", "verdict": "", "groups": [], "edges": []}
    if not _ATTEMPT.fullmatch(name):
        return {**told, "note": "the journal names no directory of an autopsy"}
    try:
        verdict = (directory / "verdict.txt").read_text(errors="replace").strip()
        found = [(int(match[1]), path) for path in directory.iterdir() if (match := _STACK.fullmatch(path.name))]
    except OSError as error:
        return {**told, "note": f"cannot read it: {error.strerror}; the newest ten of a job are kept"}
    if verdict != str(cause).strip():
        return {**told, "note": "the files there are of another hang, which had an attempt of the same number"}
    told["verdict"] = words.line(verdict)
    ranks = sorted(rank for rank, path in found if path.stat().st_size < _MOST_BYTES)
    shown = sorted({*ranks[:MOST_DUMPS], *({incident.rank} & set(ranks))})
    graph = wait_graph(incident.rank, {rank: read_dump(directory, rank) for rank in shown}, words)
    notes = []
    if len(found) > len(shown):
        notes.append(f"{len(shown)} of {len(found)} ranks are looked at: the lowest, and the culprit")
    if undrawn := graph.pop("undrawn"):
        notes.append(f"{undrawn} of them {'does' if undrawn == 1 else 'do'} something else than those drawn")
    return told | graph | {"note": "; ".join(notes)}
