"""Gathers all that is known about a job at one moment, from its journal, its ranks' pages and its supervisor.

Each reading asks the supervisor for its short status, and reads journal and pages without the supervisor. The exporter
and the reporter call `Sources.read` on their main threads.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ftlaunch.history.goodput_shares import Goodput
from ftlaunch.history.journal import JournalFollower
from ftlaunch.system.control_socket import SOCKET, ask
from ftlaunch.system.device_names import DeviceNames
from ftlaunch.views.metrics.line_check import sound
from ftlaunch.views.metrics.tally import Tally
from ftlaunch_contract.pages.page import Page, open_pages
from ftlaunch_contract.pages.words import ENDLESS
from ftlaunch_contract.protocol import Phase

_ANSWER_SECONDS = 1.0  # longest wait for the supervisor's answer
SILENT = "silent"
PHASES = (*(phase.name.lower() for phase in Phase), SILENT)


class RankReading(NamedTuple):
    """The content of a rank's page."""

    rank: int
    step: int
    step_seconds: float
    beat: float
    """monotonic seconds of the last beat"""
    phase: Phase
    seen: int
    """number of optimizer steps seen in a script without attach()"""
    resumed: int
    """the step at which the rank has resumed"""
    total: int = 0
    """number of steps that the rank's loop will make; 0 if unknown"""
    loss: float = nan
    """the loss that the script reported last"""


@dataclass(frozen=True)
class JobReading:
    """All that is known about a job at one moment."""

    tally: Tally
    now: float
    """time of the reading, in seconds since the epoch"""
    mono: float
    """time of the reading, in monotonic seconds"""
    goodput: Goodput
    status: Mapping[str, Any] | None
    """the supervisor's answer; None if there was none"""
    nodes: Sequence[Mapping[str, Any]] | None
    """the nodes of a job of several nodes; None for a job of one node"""
    ranks: Sequence[RankReading]
    """the ranks that report in the newest attempt"""
    devices: DeviceNames
    """devices of this node, which has all ranks if `nodes` is None"""
    progressed: float | None
    """monotonic seconds at which all ranks had completed the newest step of this run of the supervisor, in any attempt;
    None if there was no new step yet"""

    @property
    def completed(self) -> int:
        """The newest step that all ranks have completed; -1 if unknown."""
        return min((rank.step for rank in self.ranks), default=-1) if not self.phases[SILENT] else -1

    @property
    def total_steps(self) -> int | None:
        """The number of steps that the job will make; None if unknown or endless."""
        total = min((rank.total for rank in self.ranks), default=0)
        return total if 0 < total < ENDLESS else None

    @property
    def asked(self) -> int:
        """The greatest number of ranks of the job."""
        return 0 if self.tally.start is None else int(self.tally.start.get("ranks", 0))

    @property
    def phases(self) -> Mapping[str, int]:
        """Number of ranks by phase; ranks that report none are `silent`."""
        found = Counter(rank.phase.name.lower() for rank in self.ranks)
        return {**dict.fromkeys(PHASES, 0), **found, SILENT: max(self._had - len(self.ranks), 0)}

    @property
    def _had(self) -> int:
        """The number of ranks of the attempt, which may be fewer than `asked` in a job of MIN:MAX nodes."""
        if self.status is None or self.nodes is None:
            return self.asked
        return min(self.asked, sum(len(node["ranks"]) for node in self.nodes))

    @property
    def step_seconds(self) -> tuple[float, float, float] | None:
        """Seconds of the shortest, the median and the longest of the ranks' newest steps; None before the first."""
        times = sorted(rank.step_seconds for rank in self.ranks if rank.step_seconds > 0)
        return (times[0], median(times), times[-1]) if times else None

    @property
    def oldest_beat(self) -> float | None:
        """Seconds since the last beat of the rank that is silent longest; None if no rank has to beat."""
        beats = [rank.beat for rank in self.ranks if rank.phase is not Phase.TEARDOWN]
        return max(self.mono - min(beats), 0.0) if beats else None


class Sources:
    """The sources of readings of one run dir."""

    def __init__(self, run_dir: Path, kinds: Sequence[str], devices: DeviceNames) -> None:
        """Open nothing yet.

        Args:
            run_dir: the run dir.
            kinds: kinds that incidents may have.
            devices: devices of this node.
        """
        self._devices = devices
        self._kinds = kinds
        # The job of a run dir that was deleted goes on, and so do its metrics.
        self._journal = JournalFollower(run_dir, on_replaced=self._forget, keeps_deleted=True)
        self._forget()
        self._start: Mapping[str, Any] | None = None  # `job_started` of the run whose pages are mapped
        self._pages: Sequence[Page] = ()
        self._mark = (-1, -1, -1)  # attempt, newest step of all ranks, least number of optimizer steps seen
        self._run: Mapping[str, Any] | None = None  # `job_started` of the run in which `_progressed` was seen
        self._progressed: float | None = None

    def _forget(self) -> None:
        """Begin without lines: also when another journal has taken the place of the one that was read."""
        self.tally = Tally(self._kinds)
        self._unsound = 0  # number of events with a value of an unexpected type

    @property
    def skipped(self) -> int:
        """Number of skipped lines: torn by a crash, too long, no event, or with a value of an unexpected type."""
        return self._unsound + self._journal.dropped.total()

    def read(self) -> JobReading:
        """Make a reading.

        Raises:
            OSError: the journal cannot be read.
        """
        for event in self._journal.events():
            if sound(event):
                self.tally.apply(event)
            else:
                self._unsound += 1
        tally = self.tally
        over = bool(tally.state)
        status = None if over else self._ask({"do": "status", "ranks": False})
        nodes = self._ask({"do": "nodes"}) if status is not None and "head" in status else None
        ranks = [] if over else self._read_pages()
        now = time.time()
        mono = time.monotonic()
        listed = None if nodes is None else nodes.get("nodes")
        reading = JobReading(
            tally=tally,
            now=now,
            mono=mono,
            goodput=tally.goodput(now, mono),
            status=status,
            nodes=listed,
            ranks=ranks,
            devices=self._devices,
            progressed=None,
        )
        return reading if over else self._with_progress(reading)

    def close(self) -> None:
        """Close the journal and the pages."""
        self._journal.close()
        for page in self._pages:
            page.close()
        self._pages = ()

    def _with_progress(self, reading: JobReading) -> JobReading:
        """Record when the newest step was made. The step at which an attempt resumes is no new step."""
        reached = reading.completed
        resumed = max((rank.resumed for rank in reading.ranks), default=-1)
        seen = min((rank.seen for rank in reading.ranks), default=0)
        mark = (reading.tally.attempt, reached, seen)
        if reading.tally.start is not self._run:
            self._run = reading.tally.start
            self._progressed = None
        if mark != self._mark and (reached > resumed if reached >= 0 else seen > 0):
            self._progressed = max(rank.beat for rank in reading.ranks)
        self._mark = mark
        return JobReading(**{**vars(reading), "progressed": self._newest_progress(reading)})

    def _newest_progress(self, reading: JobReading) -> float | None:
        """Return when this process saw the newest step; before it saw one, when the journal says."""
        journal_time = reading.tally.progressed_at
        if self._progressed is not None or not journal_time:
            return self._progressed
        return reading.mono - max(reading.now - journal_time, 0.0)

    def _ask(self, question: dict[str, Any]) -> Mapping[str, Any] | None:
        if self.tally.start is None:
            return None
        try:
            answer = ask(Path(str(self.tally.start.get("memory_dir"))) / SOCKET, question, _ANSWER_SECONDS)
        except (OSError, ValueError):
            return None  # the supervisor is gone, or too busy to answer
        return answer if answer.get("ok") else None

    def _read_pages(self) -> list[RankReading]:
        if self.tally.start is not self._start:
            self._map_pages()
        attempt = self.tally.attempt
        return [_read_page(rank, page) for rank, page in enumerate(self._pages) if page.attempt == attempt]

    def _map_pages(self) -> None:
        """Map the pages of the run that has begun. If pages do not exist yet, the next reading tries again."""
        for page in self._pages:
            page.close()
        self._pages = ()
        start = self.tally.start
        assert start is not None
        with contextlib.suppress(OSError, ValueError):
            self._pages = open_pages(Path(str(start.get("memory_dir"))), int(start.get("ranks", 0)))
            self._start = start


def _read_page(rank: int, page: Page) -> RankReading:
    return RankReading(
        rank=rank,
        step=page.step,
        step_seconds=page.step_seconds,
        beat=page.beat_ns / 1e9,
        phase=page.phase,
        seen=page.seen_steps,
        resumed=page.resumed[1],
        total=page.total_steps,
        loss=page.loss,
    )
