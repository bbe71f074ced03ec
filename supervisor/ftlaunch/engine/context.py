"""What all modules of the engine share: the job's spec, its pages, its clock, and where events go.

`engine/main.py` (one node) and `nodes/` (several) build one Context and one Edges for a job and hand both to the
Supervisor. Nothing here belongs to one attempt.
"""

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
"""Makes the rank group of an attempt, from the attempt's number and the function to call when a rank's process ends."""


@dataclass(frozen=True)
class Context:
    """The parts of a job that every module of the engine may use, in the main thread."""

    spec: JobSpec
    pages: Pages
    report: Callable[[JobEvent], None]
    loop: EventLoop[Event]
    clock: Clock
    random: Callable[[], float]
    """random numbers, uniform in [0, 1), for the jitter of backoffs"""
    helpers: HelperProcesses
    rules: Sequence[FaultRule]
    collect: Collect
    """starts the process that collects an autopsy"""
    bulkheads: Bulkheads
    """runs calls that the job can do without: a failure of such a call is reported, and the job goes on"""
    files: FileThreads
    """the threads that touch run dir, logs and checkpoints, so that a silent file system does not block the loop"""
    may_start: Callable[[], bool] = lambda: True
    """whether an attempt may begin: every node that it needs is here, and the last one's GPU memory is free"""
    regroups: Callable[[], bool] = lambda: False
    """whether the next attempt runs on other nodes than those that hold the snapshots, which are saved before"""
    regroup: Callable[[bool], None] = lambda saved: None
    """lets the nodes change now; the argument: whether storage has everything that memory holds"""
    hosts: Callable[[], Sequence[str]] = tuple
    """host names of the running attempt's nodes, by place; "" for an unknown host; no names for a job of one node"""

    def host_of(self, rank: int) -> str | None:
        """Return the host of a rank of the running attempt; None if the job has one node or the host is unknown."""
        hosts = self.hosts()
        place = rank // max(self.spec.launch.nproc // self.spec.nodes.most, 1)
        return (hosts[place] or None) if 0 <= place < len(hosts) else None

    @property
    def memory_dir(self) -> Path:
        """The directory of pages and snapshots."""
        return self.pages.directory


class DeathNotices(Protocol):
    """Notices that ranks begin to die, before their processes have ended. `ranks/exit_watch.py` implements this."""

    fd: int
    """readable when a rank has begun to die"""

    def forget(self) -> None:
        """Drop all notices. Called before the ranks of an attempt are started, when no rank lives."""

    def read_dying(self) -> list[int]:
        """Return the numbers of the ranks that have begun to die."""


@dataclass(frozen=True)
class Edges:
    """What the engine needs from the outside world; tests put fakes here, and nowhere else."""

    make_group: MakeGroup
    start_saver: Callable[[], Saver]
    """starts a saver; raises OSError"""
    may_begin: Callable[[float], bool]
    """whether the first attempt may begin at a monotonic moment: the fork server is ready, or there will be none, and
    the GPU memory of a run that was killed is free"""
    deaths: DeathNotices
    report_outcomes: Callable[[], None]
    """reports which notices were delivered and which failed"""
    processor_time: Clock
    """processor seconds that the calling thread has used"""
    inherited: Inherited
    reached: int
    """the newest step that all ranks of a killed supervisor had completed; -1: unknown"""
    adoptable: Callable[[], int | None] = lambda: None
    """the number of a running attempt that is to be taken over now; None: there is none"""
    adopt: Callable[[RankGroup], None] = lambda group: None
    """makes a group know the ranks of the running attempt that is taken over"""
    peers: PeerMemory | None = None
    """the snapshots that other nodes keep; None on one node"""
