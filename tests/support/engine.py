"""The engine without processes: a group of ranks that does what a test says, and a clock that jumps.

Supervisor, event loop, watch, incidents, attempt, state table, policy and health are the real ones. Fakes are the
clock and what `Edges` names: ranks, saver, fork server, notices, and the kernel's reports of deaths.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftlaunch.autopsy.client import collect_here
from ftlaunch.checkpoints.resume import Inherited
from ftlaunch.common.bulkheads import Bulkheads
from ftlaunch.engine.context import Context, Edges
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.engine.supervisor import Supervisor
from ftlaunch.memory.pages import Pages
from ftlaunch.policy.states import Event
from ftlaunch.ranks.group import Exited
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.failures import CallFailed
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.parsing import rule_parser
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.helper_process import HelperProcesses
from tests.support.fakes.clock import BEGIN, Clock, JumpingSelector
from tests.support.fakes.files import AllFilesInPlace
from tests.support.fakes.ranks import FakeGroup
from tests.support.fakes.saver import FakeDeaths, FakeSaver, saved


class World:
    """One job without processes: what a test inspects and controls."""

    def __init__(self, home: Path, *, ranks: int = 2, limit: float = 10_000.0, **asked: str) -> None:
        """Build the job.

        Args:
            home: an empty directory.
            ranks: the number of ranks.
            limit: seconds of the jumping clock after which the job must be over.
            asked: command-line options of the job.
        """
        (home / "train.py").touch()
        flags = {"nproc_per_node": str(ranks), "run_dir": str(home / "run"), "job_id": "fake", **asked}
        self.spec: JobSpec = resolve(str(home / "train.py"), [], flags, {})
        self.spec.run_dir.mkdir()
        memory = home / "memory"
        memory.mkdir()
        self.clock = Clock()
        self._selector = JumpingSelector(self.clock, limit)
        self.loop = EventLoop[Event](self.clock, self._selector)
        self.answer: Callable[[dict[str, Any]], dict[str, Any]] = saved
        self.may_start_saver = True
        self.storage_answers = True
        self.pages = Pages(memory, ranks)
        self.events: list[JobEvent] = []
        self.groups: list[FakeGroup] = []
        self.savers: list[FakeSaver] = []
        self.deaths = FakeDeaths()
        self.may_begin = True
        self.files = AllFilesInPlace(self.spec.run_dir, self.spec.log_dir, self.spec.checkpoint_dir)
        self.cannot_start = -1
        self.other_nodes = False
        self.regrouped: list[bool] = []
        """for each change of nodes: whether storage had what memory held"""
        self.on_spawn: Callable[[FakeGroup], None] = lambda group: None
        self.make_group: Callable[[int, Exited], FakeGroup] = self._make_group
        """starts the ranks of an attempt"""
        self.processor_time: Callable[[], float] = lambda: 0.0
        """returns the processor seconds that the supervisor has used"""
        rules = rule_parser.builtin()
        helpers = HelperProcesses()
        collect = collect_here(helpers, memory)
        context = Context(
            spec=self.spec,
            pages=self.pages,
            report=self.events.append,
            loop=self.loop,
            clock=self.clock,
            random=lambda: 0.5,
            helpers=helpers,
            rules=rules,
            collect=collect,
            bulkheads=Bulkheads(lambda failed: self.events.append(CallFailed(failed))),
            files=self.files,
            regroups=lambda: self.other_nodes,
            regroup=self._regroup,
        )
        edges = Edges(
            make_group=self._begin_group,
            start_saver=self._start_saver,
            may_begin=lambda _: self.may_begin,
            deaths=self.deaths,
            report_outcomes=lambda: None,
            processor_time=self._used,
            inherited=Inherited(None, ()),
            reached=-1,
        )
        self.supervisor = Supervisor(context, edges)

    def _begin_group(self, number: int, exited: Exited) -> FakeGroup:
        return self.make_group(number, exited)

    def _used(self) -> float:
        return self.processor_time()

    def _make_group(self, number: int, exited: Exited) -> FakeGroup:
        self.groups.append(FakeGroup(self, number, exited))
        return self.groups[-1]

    def _regroup(self, saved: bool) -> None:
        self.other_nodes = False
        self.regrouped.append(saved)

    def _start_saver(self) -> Any:
        if not self.may_start_saver:
            raise OSError(11, "Resource temporarily unavailable")
        self.savers.append(FakeSaver(self, len(self.savers)))
        return self.savers[-1]

    def ring(self, fd: int) -> None:
        """Call the handler of a descriptor, as if something could be read from it."""
        self._selector.handlers[fd]()

    @property
    def group(self) -> FakeGroup:
        """The ranks of the newest attempt."""
        return self.groups[-1]

    def run(self) -> None:
        """Run the job to its end."""
        self.loop.run(self.supervisor)

    def fields_of(self, name: str) -> list[dict[str, Any]]:
        """Return the fields of the journal's events of one name."""
        return [event.fields() for event in self.events if event.name == name]

    def said(self) -> list[str]:
        """Return the sentences for the terminal."""
        return [sentence for event in self.events if (sentence := event.sentence())]

    # --- scripts of whole lives -------------------------------------------------------------------------------

    def train(self, group: FakeGroup, steps: int, every: float = 1.0, first: int = 1) -> None:
        """Have all ranks attach now, and make steps.

        Args:
            group: the ranks.
            steps: the number of steps.
            every: seconds of a step.
            first: the number of the first step.
        """
        begin = self.clock() - BEGIN
        for rank in group.ranks.values():
            rank.attach(first - 1)
        for step in range(first, first + steps):
            self.clock.at(begin + (step - first + 1) * every, lambda step=step: self.beat(group, step))  # type: ignore[misc]

    def beat(self, group: FakeGroup, step: int) -> None:
        """Have all living ranks of a group complete a step."""
        for rank in group.ranks.values():
            if rank.alive:
                rank.beat(step)

    def finish(self, group: FakeGroup) -> None:
        """Have all living ranks leave their loops and end with exit code 0."""
        for number in group.living:
            group.ranks[number].leave_loop()
            group.exit(number, 0)
