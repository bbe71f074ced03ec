"""Tells a head at the job's endpoint, if there is one, that the job is led from elsewhere.

Nodes that elect the head may have elected one on another machine than that of the endpoint. If that machine comes back
with an empty disk, it knows nothing of this, listens at the endpoint as a new head, and waits for nodes. The elected
head looks for it there again and again; the new one gives way, and its nodes go to the elected head. The connection
lasts as long as both do, so that whoever comes to the endpoint later is sent on (signpost.py).

Runs in the elected head's event loop.
"""

from __future__ import annotations

from typing import Any

from ftlaunch.nodes.agent.head.sign_of_life import SignOfLife
from ftlaunch.nodes.agent.head_link import HeadLink
from ftlaunch.nodes.agent.meeting_address import choose_at_endpoint
from ftlaunch.spec.nodes.nodes_spec import NodesSpec
from ftlaunch.system.loop import Clock, Loop

_NO_VOTERS_SECONDS = 2.0  # after which it is looked again whether nodes elect the head
_RESOLVE_SECONDS = 30.0  # without a connection, after which the endpoint's name is resolved again


class EndpointWatch:
    """The look for another head at the endpoint."""

    def __init__(self, loop: Loop, clock: Clock, nodes: NodesSpec, token: bytes, life: SignOfLife) -> None:
        """Begin to look, unless the endpoint is this machine's. May wait for the resolver.

        Args:
            loop: the head's event loop.
            clock: monotonic seconds.
            nodes: names the endpoint.
            token: the secret that both sides must know.
            life: this head's sign of life, which knows the voters.
        """
        self._loop = loop
        self._clock = clock
        self._nodes = nodes
        self._token = token
        self._life = life
        self._link: HeadLink | None = None
        if choose_at_endpoint(nodes) is None:
            self._look()

    def _look(self) -> None:
        self.close()
        if not self._life.voters:
            self._loop.call_at(self._clock() + _NO_VOTERS_SECONDS, (self, "again"), self._look)
            return
        self._link = HeadLink(
            loop=self._loop,
            clock=self._clock,
            endpoint=(self._nodes.address or "", self._nodes.port),
            token=self._token,
            on_message=_ignore,
            on_ready=self._tell,
            on_no_listener=lambda: None,
            silence_seconds=self._nodes.timeout,
        )
        self._loop.call_at(self._clock() + _RESOLVE_SECONDS, (self, "again"), self._look_again)

    def _look_again(self) -> None:
        """Resolve the endpoint's name again if nobody answers there: its machine may have another address."""
        if self._link is not None and self._link.alone_since is None:
            self._loop.call_at(self._clock() + _RESOLVE_SECONDS, (self, "again"), self._look_again)
        else:
            self._look()

    def _tell(self) -> None:
        """Tell the head at the endpoint where this one is, if a majority follows this one; else try again."""
        sign = self._life.sign
        if self._link is None:
            return
        if self._life.voters and self._life.age_seconds() < self._nodes.timeout:
            self._link.send("elsewhere", address=sign.address, port=sign.port, term=sign.term)
        else:
            self._link.renew("no majority follows this head now", slowly=True)

    def close(self) -> None:
        """End the look."""
        self._loop.cancel((self, "again"))
        if self._link is not None:
            self._link.close()
            self._link = None


def _ignore(message: dict[str, Any]) -> None:
    """Ignore what the head at the endpoint says: it ends."""
