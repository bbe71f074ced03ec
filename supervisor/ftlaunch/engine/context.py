"""What all rooms of the engine share: the job as it was asked for, its pages, its teller, its clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ftlaunch.autopsy.client import Collect
from ftlaunch.checkpoints.resume import Inherited, PeerMemory
from ftlaunch.checkpoints.saver_client import Saver
from ftlaunch.common.bulkheads import Bulkheads
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.memory.pages import Pages
from ftlaunch.policy.fault_rules import FaultRule
from ftlaunch.policy.states import Event
from ftlaunch.ranks.group import Exited, RankGroup
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.file_thread import FileThreads
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.loop import Clock

MakeGroup = Callable[[int, Exited], RankGroup]
"""Makes the ranks of an attempt: its number, and what is told of each rank whose process has ended."""


@dataclass(frozen=True)
class Context:
    """Handed to every room of the engine; nothing in it is of one attempt."""

    spec: JobSpec
    pages: Pages
    tell: Callable[[JobEvent], None]
    loop: EventLoop[Event]
    clock: Clock
    random: Callable[[], float]
    """uniform in [0, 1): jitter"""
    helpers: HelperProcesses
    rules: Sequence[FaultRule]
    collect: Collect
    """starts what an autopsy is made of"""
    bulkheads: Bulkheads
    """makes calls that only look, or serve others: the job goes on where one fails"""
    files: FileThreads
    """touch run dir, logs and checkpoints, any of which may stand still"""
    may_start: Callable[[], bool] = lambda: True
    """whether an attempt may begin: every node that it needs is here"""
    regroups: Callable[[], bool] = lambda: False
    """whether the next attempt has other nodes than memory is of: what memory holds is saved before"""
    regroup: Callable[[bool], None] = lambda saved: None
    """the nodes may change now; saved: storage has all that memory holds"""
    hosts: Callable[[], Sequence[str]] = tuple
    """of the running attempt, by place, empty where it is not known; none where the job has one node"""

    def host_of(self, rank: int) -> str | None:
        """The host of a rank of the running attempt, where the job has several."""
        hosts, place = self.hosts(), rank // max(self.spec.launch.nproc // self.spec.nodes.most, 1)
        return (hosts[place] or None) if 0 <= place < len(hosts) else None

    @property
    def memory_dir(self) -> Path:
        """Where pages and snapshots lie."""
        return self.pages.directory


class DeathNotices(Protocol):
    """Hears that ranks begin to die, before their processes have ended: see ranks/exit_watch.py."""

    fd: int

    def forget(self) -> None:
        """No rank lives: what was heard is over."""

    def heard(self) -> list[int]:
        """The ranks that have begun to die."""


@dataclass(frozen=True)
class Edges:
    """Where the engine touches the world; tests put fakes here, and nowhere else."""

    make_group: MakeGroup
    start_saver: Callable[[], Saver]
    """raises OSError"""
    may_begin: Callable[[float], bool]
    """whether the first attempt may begin: the fork server is ready, or it is known that there is none"""
    deaths: DeathNotices
    tell_outcomes: Callable[[], None]
    """tells what became of notices"""
    processor_time: Clock
    inherited: Inherited
    reached: int
    """the newest step that the ranks of a killed supervisor had all completed; -1: not known"""
    adoptable: Callable[[], int | None] = lambda: None
    """the number of a running attempt that is to be taken up now"""
    adopt: Callable[[RankGroup], None] = lambda group: None
    """makes a group know the ranks of that attempt"""
    peers: PeerMemory | None = None
    """what other nodes keep of snapshots; None on one node"""
