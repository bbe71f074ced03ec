"""Asks the resolver for a host's addresses, in a thread: a resolver that does not answer must hold nobody up.

However often a host is asked for while the resolver is silent, one thread waits for the answer.
"""

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


def addresses_of(host: str, port: int, flags: int = 0) -> list[str]:
    """The numeric addresses of a host, each once. Raises OSError; may wait for the resolver.

    flags: of getaddrinfo.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:  # a label of more than 63 bytes, an empty one, half a character
        raise socket.gaierror(socket.EAI_NONAME, f"no host can be called {host!a}") from error
    return list(dict.fromkeys(str(target[0]) for *_, target in found))


class ResolverQuestion:
    """One question to the resolver, and its answer once there is one."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.why = ""
        """why there are no addresses"""
        self._lock = threading.Lock()
        self._is_answered = threading.Event()
        self._waiting: list[Callable[[], None]] = []

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the answer; return whether it is there."""
        return self._is_answered.wait(seconds)

    def call_when_answered(self, call: Callable[[], None]) -> None:
        """Have `call` called once the answer is there: in another thread, or at once in this one."""
        with self._lock:
            if not self._is_answered.is_set():
                self._waiting.append(call)
                return
        call()

    def answer(self, addresses: list[str], why: str) -> None:
        """Take the answer, and tell all who wait."""
        with self._lock:
            self.addresses, self.why = addresses, why
            self._is_answered.set()
            waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()


_open: dict[tuple[str, int], ResolverQuestion] = {}
_open_lock = threading.Lock()


def ask_resolver(host: str, port: int) -> ResolverQuestion:
    """Ask for a host's addresses, unless that is being asked already. Never waits, never raises."""
    with _open_lock:
        if (host, port) in _open:
            return _open[host, port]
        _open[host, port] = question = ResolverQuestion()

    def ask() -> None:
        addresses: list[str] = []
        why = ""
        try:
            addresses = addresses_of(host, port)
        except OSError as error:
            why = error.strerror or str(error)
        _close(host, port).answer(addresses, why)

    try:
        threading.Thread(target=ask, name="name look-up", daemon=True).start()
    except RuntimeError as error:  # a limit on threads, or no memory
        _close(host, port).answer([], str(error))
    return question


def _close(host: str, port: int) -> ResolverQuestion:
    with _open_lock:
        return _open.pop((host, port))


class NameLookup:
    """One look-up; it begins at once, and is told of in a later call from the loop, unless it was cancelled."""

    def __init__(self, loop: Loop, host: str, port: int, found: Found) -> None:
        """Ask. found: is told. Raises OSError where there is no descriptor."""
        self._loop, self._found = loop, found
        self._lock = threading.Lock()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.register(self._fd, self._over)
        self._question = ask_resolver(host, port)
        self._question.call_when_answered(self._wake_loop)

    def cancel(self) -> None:
        """Tell nothing any more. The thread that waits for the resolver goes on waiting."""
        with self._lock:
            if self._fd >= 0:
                self._loop.unregister(self._fd)
                os.close(self._fd)
                self._fd = -1

    def _wake_loop(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def _over(self) -> None:
        self.cancel()
        self._found(self._question.addresses, self._question.why)
