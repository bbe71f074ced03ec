"""Makes pictures of a running job from its supervisor's answers, its journal, and /proc.

One thread calls `JobWatch.make_picture` repeatedly: the main thread for plain lines, a worker thread for the whole
screen.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from ftlaunch.history.events import ENDS
from ftlaunch.history.goodput import TIMED_EVENTS
from ftlaunch.history.journal import JournalFollower
from ftlaunch.history.report_view import ending
from ftlaunch.history.runs import Run
from ftlaunch.history.story import UNKNOWN, USEFUL
from ftlaunch.views.metrics.line_check import sound
from ftlaunch.views.metrics.tally import Tally
from ftlaunch.views.top.news import NEWS_EVENTS, News, news_of
from ftlaunch.views.top.pace import Pace
from ftlaunch.views.top.view import JobPast, Picture, lack_of, least_step

_PAST_NEWS = 200  # past events that the first picture tells
_MIN_INTERVAL_SECONDS = 1.0  # between pictures
_MAX_INTERVAL_SECONDS = 10.0
_INTERVAL_FACTOR = 200.0  # interval in lengths of an answer, so that pictures take below 0.5 % of the supervisor's time
_MARKS = ENDS | {"job_started"}  # the events that begin and end a run
_KEPT_EVENTS = _MARKS | {"rank_slow", "rank_slow_over"} | (TIMED_EVENTS - {"checkpoint_committed"})


class Unanswered(Exception):
    """The job gives no answer; the message says why."""

    def __init__(self, reason: str, *, gone: bool) -> None:
        """Keep the reason. gone: whether no supervisor runs the job, so that no answer can come."""
        super().__init__(reason)
        self.gone = gone


Ask = Callable[[Run, dict[str, Any]], dict[str, Any]]
"""Sends a request to a job and returns the answer. Raises Unanswered."""


class JobWatch:
    """Watches the job of one run dir, through all runs of its supervisor."""

    def __init__(self, run: Run, ask: Ask) -> None:
        self.run = run
        self._ask = ask
        self._journal = JournalFollower(run.run_dir, _KEPT_EVENTS | NEWS_EVENTS, on_replaced=self._forget)
        self.interval = _MIN_INTERVAL_SECONDS
        """seconds to wait before the next picture"""
        self._pace = Pace()
        self._memory = ResidentMemory()
        self._most_news: int | None = _PAST_NEWS  # most news of the next picture; None for all
        self._forget()

    def _forget(self) -> None:
        """Begin without events: also when another journal has taken the place of the one that was read."""
        self._waited_for: set[int] = set()
        self._tally = Tally(())

    def make_picture(self) -> Picture:
        """Return a picture of the job now, with the news since the last picture.

        Raises:
            OSError: the journal cannot be read.
        """
        news = self._news()
        began = time.monotonic()
        try:
            status, nodes = self._answers()
        except Unanswered as silence:
            self._pace.forget()
            news += self._news()  # what the supervisor wrote before it ended
            ended = ending(self.run.end) if silence.gone and self.run.end is not None else ""
            return Picture(self.run.job_id, silence=str(silence), ended=ended, news=news)
        answer_seconds = time.monotonic() - began
        self.interval = min(max(_MIN_INTERVAL_SECONDS, _INTERVAL_FACTOR * answer_seconds), _MAX_INTERVAL_SECONDS)
        here = _pids_here(status, nodes)
        return Picture(
            self.run.job_id,
            status=status,
            nodes=nodes,
            here=here,
            memory=self._memory.read(here),
            free=self._memory.free() if here else 0,
            pace=self._pace.update(time.monotonic(), least_step(status["ranks"])),
            waited_for=frozenset(self._waited_for),
            past=self._past(),
            news=news,
        )

    @property
    def memory_dirs(self) -> list[Path]:
        """The memory directories of the job on this machine, those of agents included."""
        return [*([self.run.memory_dir] if self.run.has_memory else []), *self.run.agents]

    def _answers(self) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
        """Ask the supervisor for the job's status, and for the nodes of a job of several nodes.

        Raises:
            Unanswered: there is no answer, or the supervisor has another version.
        """
        status = self._ask(self.run, {"do": "status"})
        nodes = self._ask(self.run, {"do": "nodes"}).get("nodes") if "head" in status else []
        lacking = lack_of(status, nodes)
        if lacking:
            why = f"the answer of the supervisor lacks {lacking}: it is of another version; asking again"
            raise Unanswered(why, gone=False)
        return status, nodes or []

    def _news(self) -> list[News]:
        """Read the journal's new lines, and return what they tell people."""
        news_events: deque[Mapping[str, Any]] = deque(maxlen=self._most_news)
        self._most_news = None
        for event in self._journal.events():
            if event["event"] in _KEPT_EVENTS:
                self._keep(event)
            if event["event"] in NEWS_EVENTS:
                news_events.append(event)
        return [news for event in news_events if (news := news_of(event)) is not None]

    def _keep(self, event: Mapping[str, Any]) -> None:
        """Keep what pictures need of an event."""
        if sound(event):
            self._tally.apply(event)
        name = event["event"]
        rank = event.get("rank")
        if name in _MARKS:
            self.run = Run(self.run.run_dir, [event] if name == "job_started" else [*self.run.events, event])
        elif name == "attempt_started":
            self._waited_for.clear()
        elif name == "rank_slow" and isinstance(rank, int):
            self._waited_for.add(rank)
        elif name == "rank_slow_over" and isinstance(rank, int):
            self._waited_for.discard(rank)

    def _past(self) -> JobPast | None:
        tally = self._tally
        now = time.time()
        if tally.start is None:
            return None
        seconds = tally.seconds(now)
        spent = sum(seconds.values()) - seconds[UNKNOWN]
        goodput = seconds[USEFUL] / spent if spent else None
        return JobPast(seconds=max(now - tally.started_at, 0.0), incidents=tally.incidents.total(), goodput=goodput)


def _pids_here(status: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Return the pid by rank of the living ranks on this machine."""
    host = socket.gethostname()
    elsewhere = {rank for node in nodes if node["host"] != host for rank in node["ranks"]}
    living = {rank["rank"]: rank["pid"] for rank in status["ranks"] if rank["alive"]}
    return {rank: pid for rank, pid in living.items() if rank not in elsewhere}


class ResidentMemory:
    """Reads the resident memory of the ranks on this machine.

    A handle is kept for each process, because creating a handle costs more than reading.
    """

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}

    def read(self, pids: Mapping[int, int]) -> dict[int, int]:
        """Return the resident bytes by rank, without ranks whose process is gone.

        Args:
            pids: pid by rank.
        """
        before = self._processes
        self._processes = {}
        found: dict[int, int] = {}
        for rank, pid in pids.items():
            try:
                process = before.get(pid) or psutil.Process(pid)
                found[rank] = process.memory_info().rss
            except psutil.Error:  # the process has ended, or belongs to another user
                continue
            self._processes[pid] = process
        return found

    @staticmethod
    def free() -> int:
        """Return the bytes of available memory of this machine."""
        return int(psutil.virtual_memory().available)
