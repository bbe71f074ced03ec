"""One life of an agent on a node that Ray has chosen: its actor, its lines, its end."""

from __future__ import annotations

import contextlib

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError, RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ftlaunch.nodes.agent.hosts.outlet import Outlet
from ftlaunch_ray.agent_actor import AgentActor, Output, Where
from ftlaunch_ray.job import RayJob
from ftlaunch_ray.lines import Lines


class ActorLost(Exception):
    """The actor has ended before its agent has said how; the message says why, in Ray's words."""


class AgentRefused(Exception):
    """No actor can begin on a node as it is, now or later; the message says why."""


class Session:
    """An actor on one bundle of a placement group."""

    def __init__(self, job: RayJob, group: PlacementGroup, bundle: int) -> None:
        taken = job.bundles[bundle]
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        self._actor_class = ray.remote(AgentActor).options(
            num_cpus=taken["CPU"], num_gpus=taken.get("GPU", 0), max_restarts=0, scheduling_strategy=strategy
        )
        self._actor: ActorHandle[AgentActor] | None = None
        self.where: Where | None = None
        """where it is; None as long as it has no place"""
        self.drained = False
        """whether its agent was told to leave because its node will be taken away"""

    async def placed(self) -> Where:
        """Wait until it is on a node. Raises ActorLost, AgentRefused."""
        try:
            self._actor = self._actor_class.remote()
            self.where = await self._actor.where.remote()
        except RayActorError as error:
            if error.actor_init_failed:
                raise AgentRefused(_lines(error)[-1]) from None
            raise ActorLost(_reason(error)) from None
        except RayError as error:
            raise ActorLost(_reason(error)) from None
        return self.where

    async def run(self, order: bytes, outlets: tuple[Outlet, Outlet]) -> int:
        """Start the agent, and pass on its lines; returns its exit code. Raises ActorLost."""
        assert self._actor is not None
        assert self.where is not None
        lines = {stream: Lines(f"[{self.where.address}] ") for stream in (1, 2)}
        try:
            async for reference in self._actor.run.options(num_returns="streaming").remote(order):
                word: Output | int = await reference
                if isinstance(word, int):
                    return word
                outlets[word.stream - 1].put(lines[word.stream].feed(word.block))
        except RayError as error:
            raise ActorLost(_reason(error)) from None
        finally:
            for stream, rest in lines.items():
                outlets[stream - 1].put(rest.end())
        raise ActorLost("it has ended without a word")

    def signal(self, number: int) -> None:
        """Pass a signal on to the agent."""
        assert self._actor is not None
        self._actor.signal.remote(number)

    def close(self) -> None:
        """The actor ends, and with it the agent, if that lives: by SIGTERM."""
        if self._actor is not None:
            with contextlib.suppress(RayError):  # Ray knows it no more, or cannot be asked: it has lost its last user
                ray.kill(self._actor)


def _reason(error: RayError) -> str:
    """Ray's own words, without what comes before them: that the actor has died, and the names of Ray for it."""
    if isinstance(error, ActorUnavailableError):
        return "Ray cannot reach its actor"
    lines = _lines(error)
    return lines[1] if len(lines) > 1 else lines[0]


def _lines(error: RayError) -> list[str]:
    found = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    return found or [type(error).__name__]
