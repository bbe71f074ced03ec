"""What is known of a job at a moment, gathered from its journal, its ranks' pages and its supervisor.

The supervisor is asked for a few words, once a refresh; the journal and the pages are read without it.
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
from ftlaunch.system.control_socket import SOCKET, ask
from ftlaunch.system.device_names import DeviceNames
from ftlaunch.views.metrics.journal_tail import JournalTail
from ftlaunch.views.metrics.tally import Tally
from ftlaunch_contract.pages.page import Page, open_pages
from ftlaunch_contract.pages.words import ENDLESS
from ftlaunch_contract.protocol import Phase

_PATIENCE = 1.0  # seconds that the supervisor may take to answer
SILENT = "silent"
PHASES = (*(phase.name.lower() for phase in Phase), SILENT)


class RankReading(NamedTuple):
    """What a rank's page says."""

    rank: int
    step: int
    step_seconds: float
    beat: float
    """monotonic"""
    phase: Phase
    seen: int
    """optimizer steps seen, in a script without attach()"""
    resumed: int
    """the step that it has resumed at"""
    total: int = 0
    """steps that its loop is to make; 0: it has not said"""
    loss: float = nan
    """as the script has told it last"""


@dataclass(frozen=True)
class JobReading:
    """One reading."""

    tally: Tally
    now: float
    """of the epoch"""
    mono: float
    goodput: Goodput
    status: Mapping[str, Any] | None
    """the supervisor's answer; None: it has not answered"""
    nodes: Sequence[Mapping[str, Any]] | None
    """None: the job has one node"""
    ranks: Sequence[RankReading]
    """those that report in the newest attempt"""
    devices: DeviceNames
    """of this node, which has all ranks where `nodes` is None"""
    progressed: float | None
    """monotonic: when all ranks had completed a new step, in this attempt or an earlier one of this run of the
    supervisor; None: there was none yet"""

    @property
    def completed(self) -> int:
        """The newest step that all ranks have completed; -1: not known."""
        return min((rank.step for rank in self.ranks), default=-1) if not self.phases[SILENT] else -1

    @property
    def total_steps(self) -> int | None:
        """The steps that the job is to make; None where it does not say, or does not know."""
        total = min((rank.total for rank in self.ranks), default=0)
        return total if 0 < total < ENDLESS else None

    @property
    def asked(self) -> int:
        """Ranks that the job is to have at most."""
        return 0 if self.tally.start is None else int(self.tally.start.get("ranks", 0))

    @property
    def phases(self) -> Mapping[str, int]:
        """How many ranks say that they do what."""
        found = Counter(rank.phase.name.lower() for rank in self.ranks)
        return {**dict.fromkeys(PHASES, 0), **found, SILENT: max(self._had - len(self.ranks), 0)}

    @property
    def _had(self) -> int:
        """Ranks of the attempt: of a job of MIN:MAX nodes there may be fewer than were asked for."""
        if self.status is None or self.nodes is None:
            return self.asked
        return min(self.asked, sum(len(node["ranks"]) for node in self.nodes))

    @property
    def step_seconds(self) -> tuple[float, float, float] | None:
        """The shortest, the median and the longest of the ranks' newest steps; None before there are any."""
        times = sorted(rank.step_seconds for rank in self.ranks if rank.step_seconds > 0)
        return (times[0], median(times), times[-1]) if times else None

    @property
    def oldest_beat(self) -> float | None:
        """Seconds since the last beat of the rank that is silent longest; None where no rank is to beat."""
        beats = [rank.beat for rank in self.ranks if rank.phase is not Phase.TEARDOWN]
        return max(self.mono - min(beats), 0.0) if beats else None


class Sources:
    """Where readings are gathered, of one run dir."""

    def __init__(self, run_dir: Path, kinds: Sequence[str], devices: DeviceNames) -> None:
        """kinds: that incidents may have. devices: of this node."""
        self._devices = devices
        self.tally = Tally(kinds)
        self._tail = JournalTail(run_dir)
        self._start: Mapping[str, Any] | None = None  # the run whose pages are mapped
        self._pages: Sequence[Page] = ()
        self._mark = (-1, -1, -1)  # attempt, the ranks' newest common step, and what was seen of their optimizers
        self._run: Mapping[str, Any] | None = None  # that the newest progress is of
        self._progressed: float | None = None

    @property
    def skipped(self) -> int:
        """Lines of the journal that were passed over."""
        return self._tail.skipped

    def read(self) -> JobReading:
        """Read everything anew. Raises OSError where the journal cannot be read."""
        for line in self._tail.lines():
            self.tally.hear(line)
        tally, over = self.tally, bool(self.tally.state)
        status = None if over else self._ask({"do": "status", "ranks": False})
        nodes = self._ask({"do": "nodes"}) if status is not None and "head" in status else None
        ranks = [] if over else self._read_pages()
        now, mono = time.time(), time.monotonic()
        listed = None if nodes is None else nodes.get("nodes")
        reading = JobReading(tally, now, mono, tally.goodput(now, mono), status, listed, ranks, self._devices, None)
        return reading if over else self._with_progress(reading)

    def close(self) -> None:
        """Close the journal and the pages."""
        self._tail.close()
        for page in self._pages:
            page.close()
        self._pages = ()

    def _with_progress(self, reading: JobReading) -> JobReading:
        """Note when the newest step was made; what an attempt resumes at is none."""
        reached, resumed = reading.completed, max((rank.resumed for rank in reading.ranks), default=-1)
        seen = min((rank.seen for rank in reading.ranks), default=0)
        mark = (reading.tally.attempt, reached, seen)
        if reading.tally.start is not self._run:
            self._run, self._progressed = reading.tally.start, None
        if mark != self._mark and (reached > resumed if reached >= 0 else seen > 0):
            self._progressed = max(rank.beat for rank in reading.ranks)
        self._mark = mark
        return JobReading(**{**vars(reading), "progressed": self._newest_progress(reading)})

    def _newest_progress(self, reading: JobReading) -> float | None:
        """What was seen; before that, in an exporter that has taken the place of another, what the journal tells."""
        told = reading.tally.progressed_at
        if self._progressed is not None or not told:
            return self._progressed
        return reading.mono - max(reading.now - told, 0.0)

    def _ask(self, question: dict[str, Any]) -> Mapping[str, Any] | None:
        if self.tally.start is None:
            return None
        try:
            answer = ask(Path(str(self.tally.start.get("memory_dir"))) / SOCKET, question, _PATIENCE)
        except (OSError, ValueError):
            return None  # it is gone, or too busy to answer
        return answer if answer.get("ok") else None

    def _read_pages(self) -> list[RankReading]:
        if self.tally.start is not self._start:
            self._map_pages()
        attempt = self.tally.attempt
        return [_read_page(rank, page) for rank, page in enumerate(self._pages) if page.attempt == attempt]

    def _map_pages(self) -> None:
        """Map the pages of the run that has begun; those that are not there yet are looked for at the next reading."""
        for page in self._pages:
            page.close()
        self._pages, start = (), self.tally.start
        assert start is not None
        with contextlib.suppress(OSError, ValueError):
            self._pages = open_pages(Path(str(start.get("memory_dir"))), int(start.get("ranks", 0)))
            self._start = start


def _read_page(rank: int, page: Page) -> RankReading:
    beat, resumed = page.beat_ns / 1e9, page.resumed[1]
    return RankReading(
        rank=rank, step=page.step, step_seconds=page.step_seconds, beat=beat, phase=page.phase, seen=page.seen_steps,
        resumed=resumed, total=page.total_steps, loss=page.loss,
    )  # fmt: skip
