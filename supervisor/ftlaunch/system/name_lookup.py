"""Looks up the addresses of hosts in threads, because a resolver that does not answer must not hold up the event loop.

One thread waits for the answer about a host, however often the host is asked for while the resolver is silent.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from ipaddress import ip_address

from ftlaunch.system.loop import Loop

Found = Callable[[list[str], str], None]
"""a callback that takes the addresses in the resolver's order, or no address and the reason"""


def is_numeric(host: str) -> bool:
    """Return whether a host is an IP address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def addresses_of(host: str, port: int, flags: int = 0) -> list[str]:
    """Return the numeric addresses of a host, each once. May wait for the resolver.

    Args:
        host: name or address.
        port: port number.
        flags: flags of getaddrinfo(3).

    Raises:
        OSError: the host has no address, or the resolver cannot say.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:  # the name has an empty label, one of more than 63 bytes, or half a character
        raise socket.gaierror(socket.EAI_NONAME, f"no host can be called {host!a}") from error
    return list(dict.fromkeys(str(target[0]) for *_, target in found))


class ResolverQuestion:
    """One question to the resolver, and its answer once there is one. Usable from all threads."""

    def __init__(self) -> None:
        """Start without an answer."""
        self.addresses: list[str] = []
        """addresses of the host, once there is an answer"""
        self.why = ""
        """why there are no addresses, in words"""
        self._lock = threading.Lock()
        self._is_answered = threading.Event()
        self._waiting: list[Callable[[], None]] = []

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the answer, and return whether there is one."""
        return self._is_answered.wait(seconds)

    def call_when_answered(self, call: Callable[[], None]) -> None:
        """Have `call` called once there is an answer: at once in this thread, or later in another one."""
        with self._lock:
            if not self._is_answered.is_set():
                self._waiting.append(call)
                return
        call()

    def answer(self, addresses: list[str], why: str) -> None:
        """Set the answer, and make the calls that wait for the answer."""
        with self._lock:
            self.addresses = addresses
            self.why = why
            self._is_answered.set()
            waiting = self._waiting
            self._waiting = []
        for call in waiting:
            call()


_open: dict[tuple[str, int], ResolverQuestion] = {}  # unanswered questions by host and port
_open_lock = threading.Lock()


def ask_resolver(host: str, port: int) -> ResolverQuestion:
    """Ask for a host's addresses, or return the unanswered question about the same host. Never waits, never raises."""
    with _open_lock:
        if (host, port) in _open:
            return _open[host, port]
        question = ResolverQuestion()
        _open[host, port] = question

    def ask() -> None:
        addresses: list[str] = []
        why = ""
        try:
            addresses = addresses_of(host, port)
        except OSError as error:
            why = error.strerror or str(error)
        _pop_question(host, port).answer(addresses, why)

    try:
        threading.Thread(target=ask, name="name look-up", daemon=True).start()
    except RuntimeError as error:  # a limit on threads, or no memory
        _pop_question(host, port).answer([], str(error))
    return question


def _pop_question(host: str, port: int) -> ResolverQuestion:
    """Remove a question from the unanswered ones, and return the question."""
    with _open_lock:
        return _open.pop((host, port))


class NameLookup:
    """One look-up for the event loop. It begins at once, and is reported later from the loop, unless cancelled."""

    def __init__(self, loop: Loop, host: str, port: int, found: Found) -> None:
        """Begin the look-up.

        Args:
            loop: the event loop.
            host: name of the host.
            port: port number.
            found: called from the loop with the addresses, or with the reason for having none.

        Raises:
            OSError: there is no descriptor left.
        """
        self._loop = loop
        self._found = found
        self._lock = threading.Lock()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # -1 once the look-up is over
        loop.register(self._fd, self._finish)
        self._question = ask_resolver(host, port)
        self._question.call_when_answered(self._wake_loop)

    def cancel(self) -> None:
        """Make sure that `found` is not called any more. The thread that waits for the resolver goes on waiting."""
        with self._lock:
            if self._fd >= 0:
                self._loop.unregister(self._fd)
                os.close(self._fd)
                self._fd = -1

    def _wake_loop(self) -> None:
        """Make the descriptor readable. Runs in any thread."""
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def _finish(self) -> None:
        """Release the descriptor, and report the answer."""
        self.cancel()
        self._found(self._question.addresses, self._question.why)
