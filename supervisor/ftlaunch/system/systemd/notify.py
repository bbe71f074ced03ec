"""sd_notify(3): a service that is ready, alive, about to stop, and how it is. Nothing is sent where nobody listens."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Hashable, MutableMapping
from typing import Protocol

READY, STOPPING = "READY=1", "STOPPING=1"
_ALIVE = "WATCHDOG=1"
STOP_COMMAND = "FTLAUNCH_STOP_COMMAND"
"""variable of a service that is started again after each end: the command that stops it for good"""
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_LONGEST = 400  # characters of a status


class LifeTimers(Protocol):
    """Where a timer is set: the event loop."""

    def call_at(self, when: float, name: Hashable, handler: Callable[[], None]) -> None:
        """Call `handler` once, at monotonic `when`."""


class ServiceManager:
    """systemd, where it has started this process and wants to be told."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """environ: loses the variables that say so, as no other process of the service is to speak for it."""
        address, period, pid = (environ.pop(name, "") for name in _VARIABLES)
        self._socket: socket.socket | None = None
        self._every = 0.0  # seconds; 0: no sign of life is asked for
        if address[:1] in ("/", "@"):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self._address = address if address[0] == "/" else f"\0{address[1:]}"
        if self._socket is not None and period.isdigit() and pid in ("", str(os.getpid())):
            self._every = int(period) / 1e6 / 3

    def tell(self, *words: str) -> None:
        """Send words such as READY, in one message. Never waits."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # systemd starts anew, or takes nothing now
                self._socket.sendto("\n".join(words).encode(errors="replace"), self._address)

    def tell_status(self, sentence: str) -> None:
        """What `systemctl status` is to show."""
        self.tell(f"STATUS={' '.join(sentence.split())[:_LONGEST]}")

    def show_life(self, timers: LifeTimers) -> None:
        """Say from the loop that it goes round, three times in the time after which systemd takes it for stuck."""
        if self._every:
            self.tell(_ALIVE)
            timers.call_at(time.monotonic() + self._every, "watchdog", lambda: self.show_life(timers))
