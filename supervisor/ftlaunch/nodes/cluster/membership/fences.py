"""Lost nodes whose agents may live: for how long their ranks may be at work, and whether they are known to be dead.

An agent without a head ends its ranks. Until that time has passed no other ranks take their place, unless the agent is
known to have ended: then nobody listens any more at the port that it has told, which its kernel says at once.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Protocol

from ftlaunch.system.descriptors import is_writable


class Probe(Protocol):
    """Asks whether an agent has ended. Never waits."""

    def is_dead(self) -> bool:
        """Whether it is certain by now that the agent has ended."""

    def close(self) -> None:
        """Ask no more."""


class PortProbe:
    """Connects to the port at which an agent listens as long as it lives; a silent machine gives no answer."""

    def __init__(self, address: str, port: int) -> None:
        """address: a numeric one."""
        self._target = address, port
        self._socket: socket.socket | None = None

    def is_dead(self) -> bool:
        """Whether a connection has been refused."""
        try:
            error = self._asked()
        except OSError:  # no descriptor or memory is to be had: nothing is known, and the next look asks
            return False
        if error != errno.EINPROGRESS:
            self.close()  # it is asked again at the next look
        return error == errno.ECONNREFUSED

    def _asked(self) -> int:
        """What has become of the connection by now: an errno, or 0. Raises OSError."""
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
    """Of one job."""

    def __init__(self, make_probe: Callable[[str, int], Probe] = PortProbe) -> None:
        """make_probe: given the address and the port that an agent has told."""
        self._make_probe = make_probe
        self._fences: list[tuple[float, Probe, str]] = []
        self._unknown = 0.0

    def add(self, address: str, port: int, until: float) -> None:
        """A node is lost; `until` this monotonic time its ranks may be at work. port: see `hello`."""
        self._fences.append((until, self._make_probe(address, port), address))

    def wait(self, until: float) -> None:
        """A node that nobody knows may be at work until this monotonic time."""
        self._unknown = max(self._unknown, until)

    def stand_for_others(self, address: str, now: float) -> bool:
        """Whether a lost node of another address than this one may be at work."""
        self.all_down(now)
        return any(other != address for _, _, other in self._fences)

    def all_down(self, now: float) -> bool:
        """Whether no lost node can be at work any more."""
        for fence in list(self._fences):
            until, probe, _ = fence
            if now >= until or probe.is_dead():
                probe.close()
                self._fences.remove(fence)
        return not self._fences and now >= self._unknown
