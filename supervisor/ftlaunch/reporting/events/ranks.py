"""What ranks do: they start, resume, make steps, fall silent, and end."""

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
"""ranks whose losses and step times the journal has one by one"""


@dataclass(frozen=True)
class AttemptStarted(JobEvent):
    """The ranks of an attempt are running."""

    name = "attempt_started"
    attempt: int
    pids: Sequence[int]
    """0: not known yet, as of ranks on other nodes"""
    port: int
    logs: Mapping[int, tuple[Path, int]]
    """of each rank: its log, and where in it the attempt begins, in bytes"""
    hosts: Sequence[str] = ()
    """by place; none where the job has one node"""
    seconds: float | None = None
    """that starting them took; None: they ran already"""

    def fields(self) -> dict[str, Any]:
        """Processes, where they are known, port, the hosts of several nodes, and how long starting them took."""
        pids = list(self.pids) if all(self.pids) else None
        took = self.seconds and round(self.seconds, 4)
        return {"pids": pids, "port": self.port, "hosts": list(self.hosts) or None, "seconds": took}


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
        """The new process, and how often there was one."""
        return {"rank": self.rank, "pid": self.pid, "restarts": self.restarts}


@dataclass(frozen=True)
class RankDying(JobEvent):
    """A signal has begun to end a rank."""

    name = "rank_dying"
    rank: int
    signum: int

    def fields(self) -> dict[str, Any]:
        """The rank and the signal."""
        return {"rank": self.rank, "signal": signal_name(self.signum)}


@dataclass(frozen=True)
class RankDyingSlowly(JobEvent):
    """The kernel takes its time over a dead rank."""

    priority = Priority.WARNING
    priority = Priority.WARNING
    rank: int
    seconds: float

    def sentence(self) -> str:
        """Since when."""
        return f"rank {self.rank} died {self.seconds:.0f} s ago, and the kernel has not taken it apart yet: waiting"


@dataclass(frozen=True)
class RankExited(JobEvent):
    """A rank's process has ended."""

    name = "rank_exited"
    rank: int
    pid: int
    code: int
    """negative: the signal that ended it"""
    step: int

    def fields(self) -> dict[str, Any]:
        """How it ended, and at which step."""
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
        """The rank and the signal."""
        return {"rank": self.rank, "signal": signal_name(self.signum)}

    def sentence(self) -> str:
        """What happened, and what it counts as."""
        name = signal_name(self.signum)
        return f"warning: {name} has ended rank {self.rank} after its script had ended well: that counts as exit code 0"


@dataclass(frozen=True)
class RanksKilled(JobEvent):
    """SIGKILL goes out."""

    name = "ranks_killed"
    priority = Priority.WARNING
    ranks: Sequence[int]
    why: str
    """the reason, where that is before the grace is over"""

    def fields(self) -> dict[str, Any]:
        """Those who get it."""
        return {"ranks": list(self.ranks), "why": self.why or None}

    def sentence(self) -> str:
        """The reason."""
        return self.why


@dataclass(frozen=True)
class Resumed(JobEvent):
    """All ranks have their state."""

    name = "resumed"
    news: Resumption

    def fields(self) -> dict[str, Any]:
        """From where, at which step, what was lost."""
        news = self.news
        return {
            "step": news.step,
            "source": RESTORED_FROM.get(news.kind),
            "steps_lost": news.lost,
            "seconds": news.seconds and round(news.seconds, 4),
        }

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal. A fresh start is passed over, unless something was lost."""
        news = self.news
        source = RESTORED_FROM.get(news.kind)
        if source is None:
            return messages.begun_again(news.step, news.lost) if news.lost else ""
        return messages.resumed(source, news.step, news.lost, news.seconds)


@dataclass(frozen=True)
class Recovered(JobEvent):
    """The first new step after an incident is made."""

    name = "recovered"
    news: Recovery

    def fields(self) -> dict[str, Any]:
        """How long it took."""
        return {"step": self.news.step, "seconds": round(self.news.seconds, 4)}


@dataclass(frozen=True)
class Progressed(JobEvent):
    """A new step, noted now and then."""

    name = "progress"
    news: Milestone
    loss: Sequence[tuple[int, float]]
    """rank and value, of those ranks that have said one"""
    step_seconds: Sequence[tuple[int, float]]
    """rank and seconds of its last step"""

    def fields(self) -> dict[str, Any]:
        """The step, and the ranks' losses and step times: of many ranks the lowest, the median and the highest."""
        loss, step_seconds = extremes(self.loss, SAID_ONE_BY_ONE), extremes(self.step_seconds, SAID_ONE_BY_ONE)
        many = max(len(self.loss), len(self.step_seconds)) > SAID_ONE_BY_ONE
        of = max(len(self.loss), len(self.step_seconds)) if many else None
        return {"step": self.news.step, "loss": loss, "step_seconds": step_seconds, "of": of}


def of_progress(news: News, pages: Callable[[], Sequence[tuple[int, Page]]]) -> JobEvent:
    """The event that tells of progress. pages: those of the attempt, with their ranks."""
    if isinstance(news, Resumption):
        return Resumed(news)
    if isinstance(news, Recovery):
        return Recovered(news)
    found = pages()
    losses = [(rank, page.loss) for rank, page in found if isfinite(page.loss)]
    return Progressed(news, losses, [(rank, page.step_seconds) for rank, page in found if page.step_seconds > 0])


@dataclass(frozen=True)
class HangSuspected(JobEvent):
    """A rank is over half its limit."""

    name = "hang_suspected"
    late: Late

    def fields(self) -> dict[str, Any]:
        """How long, against which limit."""
        late = self.late
        return {"rank": late.rank, "step": late.step, "age": round(late.age, 3), "limit": late.limit}


@dataclass(frozen=True)
class RankSlow(JobEvent):
    """The others wait for a rank at every step."""

    name = "rank_slow"
    priority = Priority.WARNING
    news: StragglerNews

    def fields(self) -> dict[str, Any]:
        """What its part of a step takes, and the others'."""
        news = self.news
        took = {"own": round(news.own, 6), "others": round(news.others, 6), "step_seconds": round(news.step, 6)}
        return {"rank": news.rank, **took, "sentence": news.sentence}

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
        """Its state, and its process or the reason."""
        return dict(self.details)
