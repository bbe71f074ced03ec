"""One run of an agent on a node that Ray has chosen: starts the actor, forwards the output, returns the exit code.

`launcher` creates a session for each start of an agent, and uses the session in the driver's event loop only.
"""

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
    """The actor ended, and the exit code of its agent is unknown; the message gives the reason in Ray's words."""


class AgentRefused(Exception):
    """The actor's constructor failed, so that a retry would fail again; the message gives the reason."""


class Session:
    """An actor on one bundle of a placement group."""

    def __init__(self, job: RayJob, group: PlacementGroup, bundle: int) -> None:
        resources = job.bundles[bundle]
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        self._actor_class = ray.remote(AgentActor).options(
            num_cpus=resources["CPU"],
            num_gpus=resources.get("GPU", 0),
            max_restarts=0,
            scheduling_strategy=strategy,
        )
        self._actor: ActorHandle[AgentActor] | None = None
        self.where: Where | None = None
        """the actor's node; None until Ray has placed the actor"""
        self.drained = False
        """whether the agent was told to leave because Ray will take its node away"""

    async def placed(self) -> Where:
        """Start the actor, and wait until it runs on a node.

        Raises:
            ActorLost: the actor ended; another try may succeed.
            AgentRefused: the actor cannot start on the node.
        """
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
        """Start the agent, write its lines to `outlets`, and return its exit code. Needs `placed` before.

        Args:
            order: the line for `AgentActor.run`.
            outlets: writers of the driver's stdout and stderr.

        Raises:
            ActorLost: the actor ended before it reported an exit code.
        """
        assert self._actor is not None
        assert self.where is not None
        lines = {stream: Lines(f"[{self.where.address}] ") for stream in (1, 2)}
        try:
            async for reference in self._actor.run.options(num_returns="streaming").remote(order):
                item: Output | int = await reference
                if isinstance(item, int):
                    return item
                outlets[item.stream - 1].put(lines[item.stream].feed(item.block))
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
        """End the actor. An agent that still runs then receives SIGTERM."""
        if self._actor is not None:
            with contextlib.suppress(RayError):  # Ray has forgotten the actor, or cannot be reached
                ray.kill(self._actor)


def _reason(error: RayError) -> str:
    """Return the reason in Ray's words, without the first line, which only names the dead actor."""
    if isinstance(error, ActorUnavailableError):
        return "Ray cannot reach its actor"
    lines = _lines(error)
    return lines[1] if len(lines) > 1 else lines[0]


def _lines(error: RayError) -> list[str]:
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    return lines or [type(error).__name__]
