"""What all rooms of the engine share: the job as it was asked for, its pages, its teller, its clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftlaunch.autopsy.client import Collect
from ftlaunch.engine.event_loop import Clock, EventLoop
from ftlaunch.memory.pages import Pages
from ftlaunch.policy.fault_rules import FaultRule
from ftlaunch.policy.states import Event
from ftlaunch.ranks.group import Exited, RankGroup
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.helper_process import HelperProcesses

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
    may_start: Callable[[], bool] = lambda: True
    """whether an attempt may begin: every node that it needs is here"""

    @property
    def memory_dir(self) -> Path:
        """Where pages and snapshots lie."""
        return self.pages.directory
