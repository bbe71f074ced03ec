"""Events about ranks: they start, resume, make steps, fall silent, and end. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from ftlaunch.common.outliers import extremes
from ftlaunch.common.signal_names import signal_name
from ftlaunch.health.hang_detection import Late
from ftlaunch.health.progress import Milestone, News, Recovery, Resumption
from ftlaunch.health.stragglers import StragglerNews
from ftlaunch.reporting import messages
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.system.systemd import Priority
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import RESTORED_FROM

SAID_ONE_BY_ONE = 8
"""greatest number of ranks whose losses and step times are in the journal one by one"""


@dataclass(frozen=True)
class AttemptStarted(JobEvent):
    """The ranks of an attempt are running."""

    name = "attempt_started"
    attempt: int
    pids: Sequence[int]
    """process ids by rank; 0: not known yet, such as those of ranks on other nodes"""
    port: int
    """the port of the rendezvous of the ranks"""
    logs: Mapping[int, tuple[Path, int]]
    """rank -> its log, and the offset in bytes at which the attempt begins in the log"""
    hosts: Sequence[str] = ()
    """host names by place; empty: the job has one node"""
    seconds: float | None = None
    """how long the start of all ranks took; None: the ranks ran already"""

    def fields(self) -> dict[str, Any]:
        """Return the process ids if all are known, the port, the hosts of several nodes, and the time of the start."""
        pids = list(self.pids) if all(self.pids) else None
        seconds = self.seconds and round(self.seconds, 4)
        return {"pids": pids, "port": self.port, "hosts": list(self.hosts) or None, "seconds": seconds}


@dataclass(frozen=True)
class AttemptAdopted(AttemptStarted):
    """The head of the job is gone, and another one has taken up its ranks."""

    name = "attempt_adopted"

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        return "the head of the job is gone: another one has taken its place, and the ranks that run go on"


@dataclass(frozen=True)
class RankRestarted(JobEvent):
    """One rank was started again, the others go on."""

    name = "rank_restarted"
    rank: int
    pid: int
    restarts: int

    def fields(self) -> dict[str, Any]:
        """Return the rank, its new process id, and how often the rank was restarted."""
        return {"rank": self.rank, "pid": self.pid, "restarts": self.restarts}


@dataclass(frozen=True)
class RankDying(JobEvent):
    """A signal has begun to end a rank."""

    name = "rank_dying"
    rank: int
    signum: int

    def fields(self) -> dict[str, Any]:
        """Return the rank and the signal."""
        return {"rank": self.rank, "signal": signal_name(self.signum)}


@dataclass(frozen=True)
class RankDyingSlowly(JobEvent):
    """The kernel takes its time over a dead rank."""

    priority = Priority.WARNING
    rank: int
    seconds: float
    """time since the end of the rank began"""

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        return f"rank {self.rank} died {self.seconds:.0f} s ago, and the kernel has not taken it apart yet: waiting"


@dataclass(frozen=True)
class RankExited(JobEvent):
    """A rank's process has ended."""

    name = "rank_exited"
    rank: int
    pid: int
    code: int
    """exit code; negative: the number of the signal that has ended the rank"""
    step: int

    def fields(self) -> dict[str, Any]:
        """Return the rank, its process id, its exit code or signal, and its newest step."""
        signal = signal_name(-self.code) if self.code < 0 else None
        return {"rank": self.rank, "pid": self.pid, "code": self.code, "signal": signal, "step": self.step}


@dataclass(frozen=True)
class RankCrashedAtEnd(JobEvent):
    """A signal has ended a rank whose script had ended well: no incident."""

    name = "rank_crashed_at_end"
    priority = Priority.WARNING
    rank: int
    signum: int

    def fields(self) -> dict[str, Any]:
        """Return the rank and the signal."""
        return {"rank": self.rank, "signal": signal_name(self.signum)}

    def sentence(self) -> str:
        """Return what happened, and that the rank counts as done."""
        name = signal_name(self.signum)
        return f"warning: {name} has ended rank {self.rank} after its script had ended well: that counts as exit code 0"


@dataclass(frozen=True)
class RanksKilled(JobEvent):
    """SIGKILL goes out."""

    name = "ranks_killed"
    priority = Priority.WARNING
    ranks: Sequence[int]
    why: str
    """why the ranks are killed before the grace is over; empty if it is over, or the user is in a hurry"""

    def fields(self) -> dict[str, Any]:
        """Return the killed ranks and the reason."""
        return {"ranks": list(self.ranks), "why": self.why or None}

    def sentence(self) -> str:
        """Return which ranks are killed, and why."""
        return self.why or f"rank {', '.join(map(str, self.ranks))} has not left: SIGKILL"


@dataclass(frozen=True)
class Resumed(JobEvent):
    """All ranks have their state."""

    name = "resumed"
    news: Resumption

    def fields(self) -> dict[str, Any]:
        """Return the step, the source of the state, the lost steps, and the seconds since the failure was seen."""
        news = self.news
        return {
            "step": news.step,
            "source": RESTORED_FROM.get(news.kind),
            "steps_lost": news.lost,
            "seconds": news.seconds and round(news.seconds, 4),
        }

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal; "" for a fresh start that has lost no step."""
        news = self.news
        source = RESTORED_FROM.get(news.kind)
        if source is None:
            return messages.started_over(news.step, news.lost) if news.lost else ""
        return messages.resumed(kind=source, step=news.step, lost=news.lost, seconds=news.seconds)


@dataclass(frozen=True)
class Recovered(JobEvent):
    """The first new step after an incident is made."""

    name = "recovered"
    news: Recovery

    def fields(self) -> dict[str, Any]:
        """Return the step, and the seconds since the failure."""
        return {"step": self.news.step, "seconds": round(self.news.seconds, 4)}


@dataclass(frozen=True)
class Progressed(JobEvent):
    """A new step, noted now and then."""

    name = "progress"
    news: Milestone
    loss: Sequence[tuple[int, float]]
    """rank and loss, for each rank that reports a loss"""
    step_seconds: Sequence[tuple[int, float]]
    """rank and duration of its last step in seconds"""

    def fields(self) -> dict[str, Any]:
        """Return the step and the ranks' losses and step times: for many ranks the lowest, the median, the highest."""
        ranks = max(len(self.loss), len(self.step_seconds))
        return {
            "step": self.news.step,
            "loss": extremes(self.loss, SAID_ONE_BY_ONE),
            "step_seconds": extremes(self.step_seconds, SAID_ONE_BY_ONE),
            "of": ranks if ranks > SAID_ONE_BY_ONE else None,
        }


def of_progress(news: News, pages: Callable[[], Sequence[tuple[int, Page]]]) -> JobEvent:
    """Return the event that reports progress.

    Args:
        news: what is new.
        pages: returns each rank of the attempt with its page.
    """
    if isinstance(news, Resumption):
        return Resumed(news)
    if isinstance(news, Recovery):
        return Recovered(news)
    ranks_and_pages = pages()
    losses = [(rank, page.loss) for rank, page in ranks_and_pages if isfinite(page.loss)]
    step_seconds = [(rank, page.step_seconds) for rank, page in ranks_and_pages if page.step_seconds > 0]
    return Progressed(news=news, loss=losses, step_seconds=step_seconds)


@dataclass(frozen=True)
class HangSuspected(JobEvent):
    """A rank is over half its limit."""

    name = "hang_suspected"
    late: Late

    def fields(self) -> dict[str, Any]:
        """Return the late rank, its step, and the age and the limit in seconds."""
        late = self.late
        return {"rank": late.rank, "step": late.step, "age": round(late.age, 3), "limit": late.limit}


@dataclass(frozen=True)
class RankSlow(JobEvent):
    """The others wait for a rank at every step."""

    name = "rank_slow"
    priority = Priority.WARNING
    news: StragglerNews

    def fields(self) -> dict[str, Any]:
        """Return the rank, the seconds of its own part of a step and of the others' part, and of the whole step."""
        news = self.news
        return {
            "rank": news.rank,
            "own": round(news.own, 6),
            "others": round(news.others, 6),
            "step_seconds": round(news.step, 6),
            "sentence": news.sentence,
        }

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        return self.news.sentence


@dataclass(frozen=True)
class RankSlowOver(RankSlow):
    """The others wait for it no more."""

    name = "rank_slow_over"
    priority = Priority.INFO


@dataclass(frozen=True)
class ForkServerNews(JobEvent):
    """The process from which ranks are forked is ready, is complete, did not fork, has ended, or there is none."""

    name = "warm_parent"
    details: Mapping[str, Any]

    def fields(self) -> dict[str, Any]:
        """Return the state of the fork server, and its process id or the reason."""
        return dict(self.details)
