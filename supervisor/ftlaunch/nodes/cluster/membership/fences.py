"""Fences: keep new ranks from starting while those of a lost node may still be at work.

An agent without a head ends its ranks after a known time. Until then no other ranks take their place, unless the agent
is known to have ended: then its machine's kernel refuses connections to the port that the agent has named. All calls
return at once; they are made in the event loops of heads, and by a process that stands for election.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Protocol

from ftlaunch.system.descriptors import is_writable


class Probe(Protocol):
    """Finds out whether an agent has ended. Never waits."""

    def is_dead(self) -> bool:
        """Return whether the agent has ended for certain."""

    def close(self) -> None:
        """Ask no more."""


class PortProbe:
    """A probe that connects to the port at which an agent listens as long as it lives.

    A machine that does not answer proves nothing.
    """

    def __init__(self, address: str, port: int) -> None:
        """Probe a port at a numeric address."""
        self._target = address, port
        self._socket: socket.socket | None = None

    def is_dead(self) -> bool:
        """Return whether the connection was refused. If the result is open, a later call goes on."""
        try:
            error = self._asked()
        except OSError:  # without a descriptor or memory nothing is known; the next call asks again
            return False
        if error != errno.EINPROGRESS:
            self.close()  # the next call asks again
        return error == errno.ECONNREFUSED

    def _asked(self) -> int:
        """Return the state of the connection: an errno, or 0 if it is made. Raises OSError without a descriptor."""
        if self._socket is None:
            family = socket.AF_INET6 if ":" in self._target[0] else socket.AF_INET
            self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            return self._socket.connect_ex(self._target)
        if not is_writable(self._socket, 0.0):
            return errno.EINPROGRESS
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def close(self) -> None:
        """Ask no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Fences:
    """The fences of one job."""

    def __init__(self, make_probe: Callable[[str, int], Probe] = PortProbe) -> None:
        """Begin without lost nodes. make_probe: makes the probe of an agent's address and port."""
        self._make_probe = make_probe
        self._fences: list[tuple[float, Probe, str]] = []  # until when, the probe, the address
        self._unknown = 0.0  # until when nodes that have never come may be at work

    def add(self, address: str, port: int, until: float) -> None:
        """Add a lost node.

        Args:
            address: the node's address.
            port: the `probe` port of its hello.
            until: monotonic seconds until which its ranks may be at work.
        """
        self._fences.append((until, self._make_probe(address, port), address))

    def wait(self, until: float) -> None:
        """Note that unknown nodes may be at work `until` this moment, in monotonic seconds."""
        self._unknown = max(self._unknown, until)

    def stand_for_others(self, address: str, now: float) -> bool:
        """Return whether a lost node with another address than `address` may be at work."""
        self.all_down(now)
        return any(other != address for _, _, other in self._fences)

    def all_down(self, now: float) -> bool:
        """Return whether no lost node can still be at work."""
        for fence in list(self._fences):
            until, probe, _ = fence
            if now >= until or probe.is_dead():
                probe.close()
                self._fences.remove(fence)
        return not self._fences and now >= self._unknown
