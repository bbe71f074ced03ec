"""Makes the data of a page from a run dir: ready for JSON, and bounded however long the journal is.

`writing` uses `page_data` for a page that is written once; the dashboard uses `data_of` for a page that is updated.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ftlaunch.history.journal import stream_events
from ftlaunch.history.report_view import LEDGER, ending, entry_sentences
from ftlaunch.history.story import HistoryEntry
from ftlaunch.views.report_page import evidence
from ftlaunch.views.report_page.gathering.kept_incidents import KeptIncident
from ftlaunch.views.report_page.gathering.walk import Walk, walked
from ftlaunch.views.report_page.notes import notes
from ftlaunch.views.report_page.run_files import RunFiles
from ftlaunch.views.report_page.words import SafeText

MOST_BYTES = 4_500_000
"""most bytes of the data as embedded in the page"""


class NoEvents(Exception):
    """The journal has no whole event; the message names the run dir."""


def page_data(run_dir: Path) -> dict[str, Any]:
    """Make the data of a run dir's page; the journal is read as a stream.

    Raises:
        OSError: the journal cannot be read.
        NoEvents: the journal has no whole event.
    """
    return data_of(run_dir, walked(partial(stream_events, run_dir)), RunFiles(run_dir))


def data_of(run_dir: Path, walk: Walk, files: RunFiles) -> dict[str, Any]:
    """Make the data of a page from a closed walk.

    Times in the data are seconds after `begin`; `begin` itself is in seconds since the epoch.

    Args:
        run_dir: the run dir.
        walk: the closed walk; incidents are folded in the walk if the data are too large.
        files: reads logs and autopsies of the run dir.

    Raises:
        NoEvents: the journal has no whole event.
    """
    if not walk.moments:
        raise NoEvents(f"the journal in {run_dir} has no whole event")
    words = SafeText([str(word) for word in _list(walk.start.get("command"))])
    gathered = _Gathered(run_dir, walk=walk, words=words, files=files)
    data = gathered.data()
    while len(encoded(data)) > MOST_BYTES and walk.incidents.fold_one(walk.story.step_seconds or 0.0):
        for _ in range(len(data["incidents"]) // 4):
            walk.incidents.fold_one(walk.story.step_seconds or 0.0)
        data = gathered.data()
    return data


def encoded(data: Mapping[str, Any]) -> bytes:
    """Encode the data for embedding in HTML, so that no text can end the element that holds the data."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign, code in (
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(sign, code)
    return text.encode("utf-8", "replace")


class _Gathered:
    """Turns the findings of a walk into the data of the page."""

    def __init__(self, run_dir: Path, walk: Walk, words: SafeText, files: RunFiles) -> None:
        self._run_dir = run_dir
        self._walk = walk
        self._words = words
        self._zero = walk.story.begin
        self._incidents: dict[int, dict[str, Any]] = {}  # cache by number
        self._files = files
        self._log_dir = _log_dir(run_dir, walk.start)

    def data(self) -> dict[str, Any]:
        """Return all data of the page."""
        walk = self._walk
        story = walk.story
        zero = self._zero
        assert walk.columns is not None
        return {
            "version": 1,
            "made": round(time.time(), 3),
            "begin": round(zero, 3),
            "end": round(story.end - zero, 3),
            "job": self._job(),
            "notes": notes(walk),
            "ledger": [
                {"name": name, "meaning": meaning, "seconds": round(story.seconds[name], 3), "share": self._share(name)}
                for name, meaning in LEDGER.items()
            ],
            "effective": story.effective,
            "columns": walk.columns.to_json(story.seconds, story.step_seconds),
            "spans": walk.spans.to_json(zero),
            "attempts": walk.attempts.to_json(zero),
            "checkpoints": [[*bar[:6], self._words.line(bar[6], 100)] for bar in walk.checkpoints.to_json(zero)],
            "nodes": self._nodes(),
            "steps": walk.lines.to_json(zero),
            "history": {"rows": self._history(), "left_out": self._left_out()},
            "incidents": [self._incident_once(kept) for kept in walk.incidents.kept()],
            "folded": [row | {"kind": self._words.line(row["kind"], 100)} for row in walk.incidents.folded()],
        }

    def _share(self, name: str) -> float:
        """Return a class's share of the wall time, not rounded, so that `ftctl report` shows the same figure."""
        story = self._walk.story
        total = story.end - story.begin
        return story.seconds[name] / total if total > 0 else 0.0

    def _job(self) -> dict[str, Any]:
        walk = self._walk
        story = walk.story
        words = self._words
        start = walk.start
        over = "the journal ends here: the job is running, or its supervisor was killed"
        return {
            "id": words.line(story.job_id, 200),
            "command": words.line(" ".join(map(str, _list(start.get("command")))), 1000),
            "host": words.line(start.get("host") or "", 200),
            "run_dir": words.line(self._run_dir.resolve(), 500),
            "checkpoint_dir": words.line(start.get("checkpoint_dir") or "", 500),
            "ranks": story.ranks,
            "runs": story.runs,
            "heads_replaced": story.heads_replaced,
            "attempts": story.attempts,
            "incidents": walk.incidents.count,
            "checkpoints": story.checkpoints,
            "reached": -1 if walk.newest_step.step is None else walk.newest_step.step,
            "steps_made": story.steps_made,
            "steps_lost": story.steps_lost,
            "step_seconds": story.step_seconds,
            "ended": story.ended,
            "state": "open" if walk.end is None else str(walk.end.get("event", "")).removeprefix("job_")[:20],
            "ending": words.line(over if walk.end is None else ending(walk.end), 1000),
        }

    def _nodes(self) -> dict[str, Any]:
        nodes = self._walk.nodes.to_json(self._zero)
        return nodes | {"rows": [row | {"host": self._words.line(row["host"], 100)} for row in nodes["rows"]]}

    def _history(self) -> list[list[Any]]:
        """Return time, attempt and sentence of the first and the newest entries."""
        entries = [*self._walk.first_entries, *self._walk.newest_entries]
        return [[round(e.at - self._zero, 3), e.attempt, self._words.line(_sentence(e), 600)] for e in entries]

    def _left_out(self) -> int:
        walk = self._walk
        return walk.entries - len(walk.first_entries) - len(walk.newest_entries)

    def _incident_once(self, kept: KeptIncident) -> dict[str, Any]:
        """Return an incident from the cache, so that its files are read once however often the data are made."""
        if kept.number not in self._incidents:
            self._incidents[kept.number] = self._incident(kept)
        return self._incidents[kept.number]

    def _incident(self, kept: KeptIncident) -> dict[str, Any]:
        walk = self._walk
        words = self._words
        incident = kept.incident
        more = {name: value for name, value in kept.more.items() if isinstance(value, (int, float))}
        newest_run = walk.begun_in.get(incident.attempt, kept.run)
        stale = newest_run != kept.run or (incident.attempt, incident.rank) in walk.renewed
        return {
            "number": kept.number,
            "at": round(incident.at - self._zero, 3),
            "attempt": incident.attempt,
            "rank": incident.rank,
            "kind": words.line(incident.kind, 100),
            "sentence": words.line(incident.sentence),
            "cause": words.line(kept.more.get("cause") or ""),
            "verdict": words.line(incident.verdict, 100),
            "action": words.line(kept.more.get("action") or "", 100),
            "signature": words.line(kept.more.get("signature") or "", 300),
            **{name: more.get(name) for name in ("step", "delay", "restarts_left", "hang_restarts_left")},
            "seen_after": _rounded(incident.seen_after),
            "resumed_after": _rounded(incident.resumed_after),
            "resumed_step": incident.resumed_step,
            "source": words.line(incident.source or "", 30),
            "recovered_after": _rounded(incident.recovered_after),
            "steps_lost": incident.steps_lost,
            "proof": words.line(incident.proof or "", 500),
            "cost": _rounded(kept.cost(walk.story.step_seconds or 0.0)),
            "phases": _phases(kept),
            "trace": words.lines(str(kept.more.get("trace") or ""), 40),
            "log": evidence.log_excerpt(self._files, self._log_dir, incident, words, stale=stale),
            "autopsy": evidence.autopsy(
                self._files, self._run_dir, incident=incident, cause=kept.more.get("cause"), words=words
            ),
        }


def _log_dir(run_dir: Path, start: Mapping[str, Any]) -> Path:
    """Return the directory of the logs: as the journal says, or in the run dir, which may have been moved."""
    if not start.get("log_dir"):
        return run_dir / "logs"
    said, then = (os.path.normpath(str(start.get(name) or ".")) for name in ("log_dir", "run_dir"))
    if Path(said).is_relative_to(then):
        return run_dir / Path(said).relative_to(then)
    there = Path(said).is_absolute() and os.path.isdir(said)  # noqa: PTH112, a Path raises for a name too long
    return Path(said) if there else run_dir / "logs"


def _sentence(entry: HistoryEntry) -> str:
    if sentence := entry.fields.get("sentence"):
        return str(sentence)
    if entry.what == "rolled_back":
        return f"going back to step {entry.fields.get('step', 0)}"
    if entry.what == "memory_reduced":
        return f"memory has less room for snapshots than was asked for: {entry.fields.get('slots')} slots"
    return "; ".join(entry_sentences(entry))


def _phases(kept: KeptIncident) -> list[tuple[str, float]]:
    """Return the names and seconds of a restart's phases; the first begins with the last completed step."""
    phases = [(phase.name, round(phase.end - phase.begin, 3)) for phase in kept.phases]
    return [("detecting", round(kept.incident.seen_after or 0.0, 3)), *phases[1:]] if phases else []


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
