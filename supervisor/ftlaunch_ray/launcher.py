"""Has Ray place an agent on each node, passes on signals, and ends with the agents' one exit code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from pathlib import Path

from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from ftlaunch.common.formatting import duration, printable
from ftlaunch.common.signal_names import signal_name
from ftlaunch.nodes.agent.hosts import attempts
from ftlaunch.nodes.agent.hosts.launcher import agent_order
from ftlaunch.nodes.agent.hosts.outlet import Outlet
from ftlaunch.reporting import messages
from ftlaunch.spec.parsers import Endpoint
from ftlaunch.system.signals import Signals
from ftlaunch_contract.protocol import EXIT_USAGE
from ftlaunch_ray import cluster, placement
from ftlaunch_ray.agent_actor import Where
from ftlaunch_ray.job import RayJob
from ftlaunch_ray.session import ActorLost, AgentRefused, Session

_PATIENCE = 3.0  # seconds for which the nodes may have no place before that is said
_LOOK = 1.0  # seconds between two looks at what Ray has decided


def run(job: RayJob, outlets: tuple[Outlet, Outlet]) -> int:
    """Run a job to its end; returns the exit code."""
    group = placement_group(job.bundles, strategy="STRICT_SPREAD")
    try:
        with Signals(job.spec.launch.stop_signals) as signals:
            return asyncio.run(RayLauncher(job, group, signals, outlets).run())
    finally:
        remove_placement_group(group)


class _Seat:
    """A bundle of the placement group, and what became of its agent."""

    def __init__(self, number: int, place: int | None) -> None:
        self.number = number
        self.place = place
        """the place that its agent asks for; None: it stands by"""
        self.task: asyncio.Task[None] | None = None
        self.session: Session | None = None
        """the one whose agent runs"""
        self.alive = True
        """whether its agent runs, or is started for the first time"""


class RayLauncher:
    """What the event loop works for: a task for each seat."""

    def __init__(self, job: RayJob, group: PlacementGroup, signals: Signals, outlets: tuple[Outlet, Outlet]) -> None:
        self._job, self._group, self._signals, self._outlets = job, group, signals, outlets
        most = job.spec.nodes.most
        self._seats = [_Seat(number, number if number < most else None) for number in range(len(job.bundles))]
        self._cwd = Path.cwd()
        self._draining: frozenset[str] = frozenset()
        self._ended: list[int] = []
        self._reached = self._stopping = False

    async def run(self) -> int:
        """Run to the end; returns the exit code."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._signals.fd, self._on_signals)
        self._first: asyncio.Future[Endpoint] = loop.create_future()
        if await self._has_place():
            watching = asyncio.create_task(self._watch())
            for seat in self._seats:
                seat.task = asyncio.create_task(self._keep(seat))
            await asyncio.gather(*(seat.task for seat in self._seats if seat.task is not None))
            watching.cancel()
            if not self._ended and not self._stopping:
                self._say("no agent is left, and none has said how the job has ended")
        loop.remove_reader(self._signals.fd)
        return attempts.job_code(self._ended, self._reached, self._stopping)

    async def _has_place(self) -> bool:
        """Wait until Ray has a place for every node; whether that came to be."""
        began, wait, told = time.monotonic(), self._job.spec.nodes.wait, ""
        while not await asyncio.to_thread(self._group.wait, _LOOK):
            if self._stopping:
                return False
            waited = time.monotonic() - began
            if waited < min(_PATIENCE, wait):
                continue
            why = placement.why_not(self._job.bundles, self._job.spare, cluster.nodes())
            if waited >= wait:
                self._say(f"cannot start: {why}; waited for {duration(wait)} (`--node-wait`)")
                return False
            if why != told:
                told = why
                self._say(f"{why}; waiting for {duration(wait)} at most (`--node-wait`)")
        return not self._stopping

    # --- seats ------------------------------------------------------------------------------------------------

    async def _keep(self, seat: _Seat) -> None:
        """Start the agent of a seat, again and again, as long as there is a job in which it could take part."""
        tries = 0
        with contextlib.suppress(asyncio.CancelledError):
            while not self._stopping:
                session = Session(self._job, self._group, seat.number)
                try:
                    again = await self._live(seat, session)
                finally:
                    session.close()
                    seat.session, seat.alive = None, False
                if self._over:
                    self._give_up(but=seat)
                if self._over or not again:
                    return
                tries += 1
                await asyncio.sleep(attempts.wait_before(tries))
                while session.where is not None and session.where.node in self._draining:
                    await asyncio.sleep(_LOOK)

    async def _live(self, seat: _Seat, session: Session) -> bool:
        """One life of an agent; whether another one should follow."""
        try:
            where = await session.placed()
            if not seat.alive:
                self._say(f"starting an agent on {where.address}")
            first = await self._meeting_point(seat, where)
            seat.session, seat.alive, self._reached = session, True, True
            words = self._job.agent_words(seat.place, first)
            order = json.dumps(agent_order(self._cwd, words, self._job.environ)).encode() + b"\n"
            code = await session.run(order, self._outlets)
        except ActorLost as lost:
            seat.place = None  # whose agent may be leaving still
            self._say(f"no agent could be started on a node: {lost}" if session.where is None
                      else f"the agent on {session.where.address} is lost: {lost}")  # fmt: skip
            return True
        except AgentRefused as refused:
            self._say(f"cannot start an agent on a node: {refused}")
            self._ended.append(EXIT_USAGE)
            return False
        if attempts.was_lost(code):
            self._say(f"the agent on {where.address} was killed ({signal_name(code - 128)})")
            return True
        self._ended.append(code)
        seat.place = None
        return session.drained

    async def _meeting_point(self, seat: _Seat, where: Where) -> Endpoint | None:
        """Where the nodes meet, if it is not said in the spec."""
        if not self._job.meets_at_first:
            return None
        if seat.number == 0 and not self._first.done():
            self._first.set_result(Endpoint(where.address, where.port))
        return await asyncio.shield(self._first)

    @property
    def _over(self) -> bool:
        """Whether no agent is left that others could join again."""
        return self._reached and not any(seat.alive for seat in self._seats)

    def _give_up(self, but: _Seat | None = None) -> None:
        """No agent is started any more on seats that have none."""
        for seat in self._seats:
            if seat.session is None and seat.task is not None and seat is not but:
                seat.task.cancel()

    # --- what comes from outside ------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Have the agents of nodes leave that Ray will take away."""
        while True:
            self._draining = await asyncio.to_thread(cluster.draining)
            for session in [seat.session for seat in self._seats if seat.session is not None]:
                assert session.where is not None
                if session.where.node in self._draining and not session.drained:
                    session.drained = True
                    self._say(f"Ray takes {session.where.address} away: its agent is told to leave")
                    session.signal(signal.SIGTERM)
            await asyncio.sleep(_LOOK)

    def _on_signals(self) -> None:
        for number in self._signals.read():
            self._say(f"{signal_name(number)}: passed on to the agents")
            self._stopping = True
            self._give_up()
            for seat in self._seats:
                if seat.session is not None:
                    seat.session.signal(number)

    def _say(self, sentence: str) -> None:
        self._outlets[1].put(f"{messages.PREFIX}{printable(sentence)}\n".encode())
