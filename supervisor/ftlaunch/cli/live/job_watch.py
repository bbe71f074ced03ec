"""Where the pictures of a job come from: its supervisor's answers, its journal, and /proc."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ftlaunch.cli.live.news import News, news_of
from ftlaunch.cli.live.pace import Pace
from ftlaunch.cli.live.rank_memory import ResidentMemory
from ftlaunch.cli.live.view import Picture, least_step
from ftlaunch.history.journal import EVENTS
from ftlaunch.history.rank_logs import LogReader
from ftlaunch.history.report_view import ending
from ftlaunch.history.runs import Run

_KEPT = 200  # events of the past that are told at the beginning
_LEAST = 1.0  # seconds between looks
_SHARE = 50.0  # times as long as an answer has taken: what is asked of a large job's supervisor stays a fraction
_MARKS = frozenset({"job_started", "job_finished", "job_stopped", "job_failed"})


class Unanswered(Exception):
    """The job gives no answer; the message says why."""

    def __init__(self, reason: str, *, gone: bool) -> None:
        """gone: no supervisor runs the job."""
        super().__init__(reason)
        self.gone = gone


Ask = Callable[[Run, dict[str, Any]], dict[str, Any]]
"""Asks a job. Raises Unanswered."""


class JobWatch:
    """Of one run dir, through all lives of its supervisor."""

    def __init__(self, run: Run, ask: Ask) -> None:
        self.run, self._ask = run, ask
        self.interval = _LEAST
        """seconds to wait until the next look"""
        self._journal = LogReader(run.run_dir / EVENTS)
        self._pace, self._memory = Pace(), ResidentMemory()
        self._waited_for: set[int] = set()
        self._begun = False

    def look(self) -> Picture:
        """The job at this moment. Raises OSError where the journal cannot be read."""
        began = time.monotonic()
        news = self._news()
        try:
            status = self._ask(self.run, {"do": "status"})
            nodes = self._ask(self.run, {"do": "nodes"})["nodes"] if "head" in status else []
        except Unanswered as silence:
            self._pace.forget()
            news += self._news()  # what it told before it ended
            ended = ending(self.run.end) if silence.gone and self.run.end is not None else ""
            return Picture(self.run.job_id, silence=str(silence), ended=ended, news=news)
        self.interval = max(_LEAST, _SHARE * (time.monotonic() - began))
        here = _pids_here(status, nodes)
        return Picture(
            self.run.job_id,
            status=status,
            nodes=nodes,
            memory=self._memory.look(here),
            free=self._memory.free() if here else 0,
            pace=self._pace.look(time.monotonic(), least_step(status["ranks"])),
            waited_for=frozenset(self._waited_for),
            news=news,
        )

    @property
    def memory_dirs(self) -> list[Path]:
        """The directories of the job's memory on this machine."""
        return [*([self.run.memory_dir] if self.run.has_memory else []), *self.run.agents]

    def _news(self) -> list[News]:
        news = [told for event in self._events() if (told := news_of(event)) is not None]
        begun, self._begun = self._begun, True
        return news if begun else news[-_KEPT:]

    def _events(self) -> Iterator[Mapping[str, Any]]:
        """What the journal tells since the last look."""
        marks = []
        for line in self._journal.read():
            try:
                event = json.loads(line)
            except ValueError:
                continue  # torn by a crash
            if not isinstance(event, dict) or "event" not in event:
                continue
            if event["event"] in _MARKS:
                marks.append(event)
            self._note_slow(event)
            yield event
        if marks:
            self.run = Run(self.run.run_dir, [self.run.start, *marks])

    def _note_slow(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "rank_slow":
            self._waited_for.add(event.get("rank", -1))
        elif event["event"] == "rank_slow_over":
            self._waited_for.discard(event.get("rank", -1))
        elif event["event"] == "attempt_started":
            self._waited_for.clear()


def _pids_here(status: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """rank -> pid, of the living ranks on this machine."""
    host = socket.gethostname()
    elsewhere = {rank for node in nodes if node["host"] != host for rank in node["ranks"]}
    living = {rank["rank"]: rank["pid"] for rank in status["ranks"] if rank["alive"]}
    return {rank: pid for rank, pid in living.items() if rank not in elsewhere}
