"""Keeps one agent on each node that Ray gives to the job, passes on signals, and combines the agents' exit codes.

`command` calls `run` on the driver's main thread. All state lives in one event loop with a task for each seat (bundle
of the placement group); only waiting for Ray happens on helper threads.
"""

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
from ftlaunch.nodes.agent.hosts.launcher import build_agent_order
from ftlaunch.nodes.agent.hosts.outlet import Outlet
from ftlaunch.reporting import messages
from ftlaunch.spec.parsers import Endpoint
from ftlaunch.system.signals import Signals
from ftlaunch_contract.protocol import EXIT_USAGE
from ftlaunch_ray import cluster, placement
from ftlaunch_ray.agent_actor import Where
from ftlaunch_ray.job import RayJob
from ftlaunch_ray.session import ActorLost, AgentRefused, Session

_QUIET_SECONDS = 3.0  # Ray may take this long to place the nodes before the user is told about the wait
_POLL_SECONDS = 1.0  # interval at which Ray's decisions are read


def run(job: RayJob, outlets: tuple[Outlet, Outlet]) -> int:
    """Run a job to its end.

    Args:
        job: the job; its bundles become one placement group, each bundle on a node of its own.
        outlets: writers of the driver's stdout and stderr.

    Returns:
        The exit code of the job.
    """
    group = placement_group(job.bundles, strategy="STRICT_SPREAD")
    try:
        with Signals(job.spec.launch.stop_signals) as signals:
            return asyncio.run(RayLauncher(job, group, signals, outlets).run())
    finally:
        remove_placement_group(group)


class _Seat:
    """A bundle of the placement group, and the state of its agent."""

    def __init__(self, number: int, place: int | None) -> None:
        self.number = number
        self.place = place
        """the node rank that the seat's agent asks for; None if the agent stands by"""
        self.task: asyncio.Task[None] | None = None
        self.session: Session | None = None
        """the session whose agent runs now"""
        self.alive = True
        """whether the seat's agent runs, or is being started for the first time"""


class RayLauncher:
    """Runs the agents of a job, one asyncio task for each seat."""

    def __init__(self, job: RayJob, group: PlacementGroup, signals: Signals, outlets: tuple[Outlet, Outlet]) -> None:
        self._job = job
        self._group = group
        self._signals = signals
        self._outlets = outlets
        most = job.spec.nodes.most
        self._seats = [_Seat(number, number if number < most else None) for number in range(len(job.bundles))]
        self._cwd = Path.cwd()
        self._draining: frozenset[str] = frozenset()
        self._ended: list[int] = []
        self._reached = False
        self._stopping = False

    async def run(self) -> int:
        """Run the agents until none is left and none can join again. Return the exit code of the job."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._signals.fd, self._on_signals)
        self._first: asyncio.Future[Endpoint] = loop.create_future()
        if await self._has_place():
            draining_watch = asyncio.create_task(self._watch_draining())
            for seat in self._seats:
                seat.task = asyncio.create_task(self._keep_agent(seat))
            await asyncio.gather(*(seat.task for seat in self._seats if seat.task is not None))
            draining_watch.cancel()
            if not self._ended and not self._stopping:
                self._say("no agent is left, and none has said how the job has ended")
        loop.remove_reader(self._signals.fd)
        return attempts.choose_job_code(self._ended, self._reached, self._stopping)

    async def _has_place(self) -> bool:
        """Wait until Ray has reserved every node.

        Returns:
            True once all nodes are reserved; False after `--node-wait` seconds, or after a signal.
        """
        began = time.monotonic()
        wait = self._job.spec.nodes.wait
        reported = ""
        while not await asyncio.to_thread(self._group.wait, _POLL_SECONDS):
            if self._stopping:
                return False
            waited = time.monotonic() - began
            if waited < min(_QUIET_SECONDS, wait):
                continue
            why = placement.why_not(self._job.bundles, self._job.spare, cluster.nodes())
            if waited >= wait:
                self._say(f"cannot start: {why}; waited for {duration(wait)} (`--node-wait`)")
                return False
            if why != reported:
                reported = why
                self._say(f"{why}; waiting for {duration(wait)} at most (`--node-wait`)")
        return not self._stopping

    # --- seats ------------------------------------------------------------------------------------------------

    async def _keep_agent(self, seat: _Seat) -> None:
        """Start the seat's agent, and start it again after a loss, until the job is over or stopping."""
        tries = 0
        with contextlib.suppress(asyncio.CancelledError):
            while not self._stopping:
                session = Session(self._job, self._group, seat.number)
                try:
                    restart = await self._run_agent(seat, session)
                finally:
                    session.close()
                    seat.session = None
                    seat.alive = False
                if self._over:
                    self._cancel_starts(but=seat)
                if self._over or not restart:
                    return
                tries += 1
                await asyncio.sleep(attempts.compute_wait_seconds(tries))
                while session.where is not None and session.where.node in self._draining:
                    await asyncio.sleep(_POLL_SECONDS)

    async def _run_agent(self, seat: _Seat, session: Session) -> bool:
        """Start an agent and wait for its end. Return whether the seat should get another agent."""
        try:
            where = await session.placed()
            if not seat.alive:
                self._say(f"starting an agent on {where.address}")
            first = await self._meeting_point(seat, where)
            seat.session = session
            seat.alive = True
            self._reached = True
            words = self._job.agent_words(seat.place, first)
            order = build_agent_order(cwd=self._cwd, argv=words, environ=self._job.environ, spec=self._job.spec)
            code = await session.run(json.dumps(order).encode() + b"\n", self._outlets)
        except ActorLost as lost:
            seat.place = None  # the lost agent may still be leaving, and hold the place
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
        """Return the address of the first node once known; None if the spec names a rendezvous endpoint."""
        if not self._job.meets_at_first:
            return None
        if seat.number == 0 and not self._first.done():
            self._first.set_result(Endpoint(where.address, where.port))
        return await asyncio.shield(self._first)

    @property
    def _over(self) -> bool:
        """Whether no agent runs any more, so that a restarted agent would find no job to join."""
        return self._reached and not any(seat.alive for seat in self._seats)

    def _cancel_starts(self, but: _Seat | None = None) -> None:
        """Start no further agent on seats that have no running agent, except for the task of the seat `but`."""
        for seat in self._seats:
            if seat.session is None and seat.task is not None and seat is not but:
                seat.task.cancel()

    # --- what comes from outside ------------------------------------------------------------------------------

    async def _watch_draining(self) -> None:
        """Send SIGTERM to the agents on nodes that Ray will take away."""
        while True:
            self._draining = await asyncio.to_thread(cluster.draining)
            for session in [seat.session for seat in self._seats if seat.session is not None]:
                assert session.where is not None
                if session.where.node in self._draining and not session.drained:
                    session.drained = True
                    self._say(f"Ray takes {session.where.address} away: its agent is told to leave")
                    session.signal(signal.SIGTERM)
            await asyncio.sleep(_POLL_SECONDS)

    def _on_signals(self) -> None:
        for number in self._signals.read():
            self._say(f"{signal_name(number)}: passed on to the agents")
            self._stopping = True
            self._cancel_starts()
            for seat in self._seats:
                if seat.session is not None:
                    seat.session.signal(number)

    def _say(self, sentence: str) -> None:
        self._outlets[1].put(f"{messages.PREFIX}{printable(sentence)}\n".encode())
