"""An agent's connection to the head: made, made again where it ends, and for how long there has been none."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from ftlaunch.nodes.agent.head.meeting_address import is_own
from ftlaunch.nodes.channel.connection import BROKEN_OFF, Connection, connect
from ftlaunch.nodes.cluster import messages
from ftlaunch.system.loop import Clock, Loop
from ftlaunch.system.name_lookup import NameLookup, is_numeric

_PATIENCE = 5.0  # seconds for one try: a head that begins may be waiting for what an earlier one has left
_AGAIN = 0.1  # seconds between tries; then half as long again each time, up to the next
_SELDOM = 2.0
_REFUSED = os.strerror(errno.ECONNREFUSED)


class HeadLink:
    """Tries for as long as it is not closed. A name is resolved at every try: its scheduler may publish it late."""

    def __init__(
        self, loop: Loop, clock: Clock, endpoint: tuple[str, int] | str, token: bytes,
        heard: Callable[[dict[str, Any]], None], met: Callable[[], None], missed: Callable[[], None],
        node_timeout: float,
    ) -> None:  # fmt: skip
        """heard: takes messages of `messages.DOWN`. met: a connection is ready. missed: nobody listens there now.

        node_timeout: seconds for which the head's machine may stand still.
        endpoint: of the head; text where it is not known yet, but is to be found there.
        """
        self._loop, self._clock, self._token = loop, clock, token
        self._source = endpoint if isinstance(endpoint, str) else ""
        self._endpoint = ("", 0) if isinstance(endpoint, str) else endpoint
        self._heard, self._met, self._missed = heard, met, missed
        self._node_timeout = node_timeout
        self._connection: Connection | None = None
        self._pause = _AGAIN
        self._lookup: NameLookup | None = None
        self._addresses: list[str] = []  # of the endpoint's host, the one to be tried next first
        self.alone_since: float | None = clock()
        """since when there has been no head; None: there is one"""
        self.was_met = False
        """there has been a head"""
        self.why = "it has not answered yet"
        """why the last try has failed, or the connection has ended"""
        self.refused = False
        """the machine of the endpoint answers, and nobody listens there"""
        self.broken_off = 0
        """handshakes in a row that were broken off: the other side does not know the token, or ends"""
        self.at_home = False
        """the endpoint is this machine's: its own kernel says whether somebody listens there"""
        self.tried_at = clock()
        """when the last try was begun"""
        self._try()

    def send(self, do: str, **fields: Any) -> None:
        """Send a message of `messages.UP`, where there is a head."""
        if self._connection is not None and self._connection.ready:
            self._connection.send({"do": do, **fields})

    @property
    def endpoint(self) -> str:
        """For people."""
        address, port = self._endpoint
        return f"{address}:{port}" if address else self._source

    def go_to(self, address: str, port: int) -> None:
        """The head is at this numeric address from now on."""
        if (address, port) == self._endpoint:
            return
        self._endpoint, self._addresses = (address, port), []
        self._forget_lookup()
        if self._connection is not None:
            self._lost("the head is elsewhere now")
        self._pause = _AGAIN
        self._loop.call_at(self._clock(), (self, "again"), self._try)

    def renew(self, why: str) -> None:
        """End the connection, and make another."""
        if self.alone_since is None:
            self._lost(why)

    def close(self) -> None:
        """Give the connection back."""
        self._loop.cancel((self, "again"))
        self._forget_lookup()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _forget_lookup(self) -> None:
        if self._lookup is not None:
            self._lookup.cancel()
            self._lookup = None

    def _try(self) -> None:
        host, port = self._endpoint
        if not host:
            self.why = "no head has told its address there"
            return
        self.tried_at = self._clock()
        if is_numeric(host):
            self._addresses = [host]
        if self._addresses and (self.was_met or is_numeric(host)):
            self._connect()
        else:
            self.why = f"no answer yet of the resolver for {host}"
            try:
                self._lookup = NameLookup(self._loop, host, port, self._resolved)
            except (OSError, RuntimeError) as error:  # no descriptor, or no thread
                self._failed(f"the resolver cannot be asked for {host}: {error}")

    def _resolved(self, addresses: list[str], why: str) -> None:
        self._lookup = None
        host, _ = self._endpoint
        if not addresses:
            self._failed(f"{host} cannot be resolved ({why})")
            return
        tried = next((one for one in self._addresses if one in addresses), addresses[0])
        begin = addresses.index(tried)
        self._addresses = addresses[begin:] + addresses[:begin]
        self._connect()

    def _connect(self) -> None:
        address, (_, port) = self._addresses[0], self._endpoint
        try:
            self.at_home = is_own(address)
        except OSError as error:
            self._failed(f"cannot connect to {self.endpoint}: {error.strerror}")
            return
        told = address, port, self._token, self._clock() + _PATIENCE
        connection = connect(
            self._loop, self._clock, *told, version=messages.VERSION, silence_seconds=self._node_timeout
        )
        self._connection = connection
        connection.on_ready = self._ready
        connection.on_message = self._on_message
        connection.on_end = self._failed

    def _ready(self) -> None:
        self.alone_since, self.was_met, self._pause = None, True, _AGAIN
        self._met()

    def _on_message(self, message: dict[str, Any]) -> None:
        try:
            messages.check(message, messages.DOWN)
        except ValueError as error:
            self._lost(f"the head has sent {error}")
            return
        self._heard(message)

    def _lost(self, why: str) -> None:
        if self._connection is not None:
            self._connection.close()
        self._failed(why)

    def _failed(self, why: str) -> None:
        self._connection, self.why = None, why
        self.refused = why.endswith(_REFUSED)
        self.broken_off = self.broken_off + 1 if BROKEN_OFF in why else 0
        if self.refused and self.at_home:
            self._missed()
        if not self.was_met:
            self._addresses = self._addresses[1:] + self._addresses[:1]
        if self.alone_since is None:
            self.alone_since = self._clock()
        self._loop.call_at(self._clock() + self._pause, (self, "again"), self._try)
        self._pause = min(1.5 * self._pause, _SELDOM)
