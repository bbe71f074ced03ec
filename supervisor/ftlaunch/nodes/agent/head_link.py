"""An agent's connection to the head: made again whenever the connection ends.

Runs in the agent's event loop and never blocks. `HeadLink` also knows for how long there has been no head, and why.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from ftlaunch.nodes.agent.meeting_address import is_own
from ftlaunch.nodes.channel.connection import BROKEN_OFF, Connection, connect
from ftlaunch.nodes.cluster import messages
from ftlaunch.system.loop import Clock, Loop
from ftlaunch.system.name_lookup import NameLookup, is_numeric

_TRY_SECONDS = 5.0  # for one try: a new head may be waiting for what an earlier one has left behind
_FIRST_PAUSE_SECONDS = 0.1  # between two tries; each pause is 1.5 times the one before, up to _LONGEST_PAUSE_SECONDS
_LONGEST_PAUSE_SECONDS = 2.0
_REFUSED = os.strerror(errno.ECONNREFUSED)


class HeadLink:
    """Tries to reach the head until closed.

    A host name is resolved at every try before the first connection, because a scheduler may publish the name late.
    """

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        endpoint: tuple[str, int] | str,
        token: bytes,
        on_message: Callable[[dict[str, Any]], None],
        on_ready: Callable[[], None],
        on_no_listener: Callable[[], None],
        silence_seconds: float,
    ) -> None:
        """Begin the first try.

        Args:
            loop: the agent's event loop.
            clock: monotonic seconds.
            endpoint: the head's address and port; or text that says, for people, where the endpoint will be found.
            token: the secret that both sides must know.
            on_message: called with each message of `messages.DOWN`.
            on_ready: called when a connection is ready.
            on_no_listener: called when nobody listens at an endpoint on this machine.
            silence_seconds: seconds of silence after which the connection counts as lost.
        """
        self._loop = loop
        self._clock = clock
        self._token = token
        self._source = endpoint if isinstance(endpoint, str) else ""
        self._endpoint = ("", 0) if isinstance(endpoint, str) else endpoint
        self._on_message = on_message
        self._on_ready = on_ready
        self._on_no_listener = on_no_listener
        self._silence_seconds = silence_seconds
        self._connection: Connection | None = None
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._lookup: NameLookup | None = None
        self._addresses: list[str] = []  # of the endpoint's host; the first one is tried next
        self.alone_since: float | None = clock()
        """since when there has been no head, in monotonic seconds; None while there is one"""
        self.was_met = False
        """whether there has been a head"""
        self.why = "it has not answered yet"
        """why the last try has failed, or the connection has ended"""
        self.refused = False
        """whether the last try was refused: the endpoint's machine answers, and nobody listens there"""
        self.broken_off = 0
        """the number of broken handshakes in a row; the other side does not know the token, or is ending"""
        self.at_home = False
        """whether the endpoint is this machine's, so that its own kernel says whether somebody listens there"""
        self.tried_at = clock()
        """when the last try was begun, in monotonic seconds"""
        self._try()

    def send(self, do: str, **fields: Any) -> None:
        """Send a message of `messages.UP`; do nothing without a head."""
        if self._connection is not None and self._connection.ready:
            self._connection.send({"do": do, **fields})

    @property
    def queued(self) -> int:
        """Bytes that wait to be sent to the head."""
        return 0 if self._connection is None else self._connection.queued

    @property
    def endpoint(self) -> str:
        """The head's address and port, for people."""
        address, port = self._endpoint
        return f"{address}:{port}" if address else self._source

    def go_to(self, address: str, port: int) -> None:
        """Connect to an address, numeric or a name, and a port from now on."""
        if (address, port) == self._endpoint:
            return
        self._endpoint = (address, port)
        self._addresses = []
        self.broken_off = 0
        self._forget_lookup()
        if self._connection is not None:
            self._lost("the head is elsewhere now")
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._loop.call_at(self._clock(), (self, "retry"), self._try)

    def renew(self, why: str, *, slowly: bool = False) -> None:
        """End the connection to the head, if there is one, and make another.

        Args:
            why: the reason, a clause that follows a colon.
            slowly: whether to wait as long as after many failed tries.
        """
        if self.alone_since is None:
            if slowly:
                self._pause_seconds = _LONGEST_PAUSE_SECONDS
            self._lost(why)

    def close(self) -> None:
        """End the connection and all tries."""
        self._loop.cancel((self, "retry"))
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
        # Go on where the last try stopped, so that each address has its turn.
        next_address = next((address for address in self._addresses if address in addresses), addresses[0])
        begin = addresses.index(next_address)
        self._addresses = addresses[begin:] + addresses[:begin]
        self._connect()

    def _connect(self) -> None:
        address = self._addresses[0]
        port = self._endpoint[1]
        try:
            self.at_home = is_own(address)
        except OSError as error:
            self._failed(f"cannot connect to {self.endpoint}: {error.strerror}")
            return
        connection = connect(
            loop=self._loop,
            clock=self._clock,
            address=address,
            port=port,
            token=self._token,
            deadline=self._clock() + _TRY_SECONDS,
            version=messages.VERSION,
            silence_seconds=self._silence_seconds,
        )
        self._connection = connection
        connection.on_ready = self._ready
        connection.on_message = self._handle_message
        connection.on_end = self._failed

    def _ready(self) -> None:
        self.alone_since = None
        self.was_met = True
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._on_ready()

    def _handle_message(self, message: dict[str, Any]) -> None:
        try:
            messages.check(message, messages.DOWN)
        except ValueError as error:
            self._lost(f"the head has sent {error}")
            return
        self._on_message(message)

    def _lost(self, why: str) -> None:
        if self._connection is not None:
            self._connection.close()
        self._failed(why)

    def _failed(self, why: str) -> None:
        self._connection = None
        self.why = why
        self.refused = why.endswith(_REFUSED)
        self.broken_off = self.broken_off + 1 if BROKEN_OFF in why else 0
        if self.refused and self.at_home:
            self._on_no_listener()
        if not self.was_met:
            self._addresses = self._addresses[1:] + self._addresses[:1]
        if self.alone_since is None:
            self.alone_since = self._clock()
        self._loop.call_at(self._clock() + self._pause_seconds, (self, "retry"), self._try)
        self._pause_seconds = min(1.5 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
