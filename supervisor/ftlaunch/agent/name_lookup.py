"""Asks the resolver for a host's addresses, in a thread: a resolver that does not answer must not hold an agent up."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from ipaddress import ip_address

from ftlaunch.system.loop import Loop

Found = Callable[[list[str], str], None]
"""Given the addresses in the resolver's order, or none of them and why."""


def is_numeric(host: str) -> bool:
    """Whether a host is an address already."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def addresses_of(host: str, port: int) -> list[str]:
    """The numeric addresses of a host, each once. Raises OSError; may wait for the resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(target[0]) for *_, target in found))


class NameLookup:
    """One look-up; it begins at once, and is told of in a later call from the loop, unless it was cancelled."""

    def __init__(self, loop: Loop, host: str, port: int, found: Found) -> None:
        """Raises OSError where there is no descriptor, RuntimeError where no thread can be started."""
        self._loop, self._host, self._port, self._found = loop, host, port, found
        self._fd: int = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._cancelled = False
        self._addresses: list[str] = []
        self._why = ""
        try:
            threading.Thread(target=self._ask, name="name look-up", daemon=True).start()
        except RuntimeError:
            os.close(self._fd)
            raise
        loop.register(self._fd, self._over)  # where this fails, the thread has the descriptor still

    def cancel(self) -> None:
        """Tell nothing any more. The thread may still wait: its descriptor stays open."""
        if not self._cancelled:
            self._cancelled = True
            self._loop.unregister(self._fd)

    def _ask(self) -> None:
        try:
            self._addresses = addresses_of(self._host, self._port)
        except OSError as error:
            self._why = error.strerror or str(error)
        os.eventfd_write(self._fd, 1)

    def _over(self) -> None:
        self.cancel()
        os.close(self._fd)
        self._found(self._addresses, self._why)
