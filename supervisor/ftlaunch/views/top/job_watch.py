"""Where the pictures of a job come from: its supervisor's answers, its journal, and /proc."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ftlaunch.history.goodput import HEARD
from ftlaunch.history.journal import EVENTS
from ftlaunch.history.rank_logs import LogReader
from ftlaunch.history.report_view import ending
from ftlaunch.history.runs import Run
from ftlaunch.history.story import UNKNOWN, USEFUL
from ftlaunch.views.metrics.line_check import sound
from ftlaunch.views.metrics.tally import Tally
from ftlaunch.views.top.newest_run import MARKS, event_name, of_newest, parsed
from ftlaunch.views.top.news import News, news_of, tells
from ftlaunch.views.top.pace import Pace
from ftlaunch.views.top.rank_memory import ResidentMemory
from ftlaunch.views.top.view import JobPast, Picture, lack_of, least_step

_KEPT = 200  # events of the past that are told at the beginning
_LEAST, _MOST = 1.0, 10.0  # seconds between looks
_SHARE = 200.0  # times as long as an answer has taken: what is asked of a large job's supervisor stays below 0.5 %
_HEEDED = MARKS | {"rank_slow", "rank_slow_over"} | (HEARD - {"checkpoint_committed"})  # of which something is kept


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
        self._tally = Tally(())
        self._kept: int | None = _KEPT  # news of this look at most; None: all of them

    def look(self) -> Picture:
        """The job at this moment. Raises OSError where the journal cannot be read."""
        news = self._news()
        began = time.monotonic()
        try:
            status, nodes = self._answers()
        except Unanswered as silence:
            self._pace.forget()
            news += self._news()  # what it told before it ended
            ended = ending(self.run.end) if silence.gone and self.run.end is not None else ""
            return Picture(self.run.job_id, silence=str(silence), ended=ended, news=news)
        self.interval = min(max(_LEAST, _SHARE * (time.monotonic() - began)), _MOST)
        here = _pids_here(status, nodes)
        return Picture(
            self.run.job_id,
            status=status,
            nodes=nodes,
            here=here,
            memory=self._memory.look(here),
            free=self._memory.free() if here else 0,
            pace=self._pace.look(time.monotonic(), least_step(status["ranks"])),
            waited_for=frozenset(self._waited_for),
            past=self._past(),
            news=news,
        )

    @property
    def memory_dirs(self) -> list[Path]:
        """The directories of the job's memory on this machine."""
        return [*([self.run.memory_dir] if self.run.has_memory else []), *self.run.agents]

    def _answers(self) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
        """The status and the nodes that the supervisor tells. Raises Unanswered."""
        status = self._ask(self.run, {"do": "status"})
        nodes = self._ask(self.run, {"do": "nodes"}).get("nodes") if "head" in status else []
        lacking = lack_of(status, nodes)
        if lacking:
            said = f"the answer of the supervisor lacks {lacking}: it is of another version; asking again"
            raise Unanswered(said, gone=False)
        return status, nodes or []

    def _news(self) -> list[News]:
        """What the journal tells since the last look."""
        most, self._kept = self._kept, None
        told: deque[str] = deque(maxlen=most)
        for line in self._journal.read():
            name = event_name(line)
            if name in _HEEDED:
                self._heed(parsed(line))
            if tells(name):
                told.append(line)
        events = (event for line in told if (event := parsed(line)) is not None)
        return [news for event in events if (news := news_of(event)) is not None]

    def _heed(self, event: Mapping[str, Any] | None) -> None:
        if event is None:
            return
        if sound(event):
            self._tally.hear(event)
        name, rank = event["event"], event.get("rank")
        if name in MARKS:
            self.run = Run(self.run.run_dir, of_newest([*self.run.events, event]))
        elif name == "attempt_started":
            self._waited_for.clear()
        elif name == "rank_slow" and isinstance(rank, int):
            self._waited_for.add(rank)
        elif name == "rank_slow_over" and isinstance(rank, int):
            self._waited_for.discard(rank)

    def _past(self) -> JobPast | None:
        tally, now = self._tally, time.time()
        if tally.start is None:
            return None
        seconds = tally.seconds(now)
        spent = sum(seconds.values()) - seconds[UNKNOWN]
        goodput = seconds[USEFUL] / spent if spent else None
        return JobPast(max(now - tally.started_at, 0.0), tally.incidents.total(), goodput)


def _pids_here(status: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """rank -> pid, of the living ranks on this machine."""
    host = socket.gethostname()
    elsewhere = {rank for node in nodes if node["host"] != host for rank in node["ranks"]}
    living = {rank["rank"]: rank["pid"] for rank in status["ranks"] if rank["alive"]}
    return {rank: pid for rank, pid in living.items() if rank not in elsewhere}
