"""Tells systemd that a service is ready, alive, or about to stop, and its status (sd_notify(3)).

The supervisor or agent uses this in its event loop. Nothing is sent if systemd has not started the process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping

from ftlaunch.system.loop import Loop

READY = "READY=1"
STOPPING = "STOPPING=1"
_ALIVE = "WATCHDOG=1"
STOP_COMMAND = "FTLAUNCH_STOP_COMMAND"
"""variable that a service has if systemd starts it again after each end: the command that stops it for good"""
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_LONGEST = 400  # characters of a status


class ServiceManager:
    """The connection to systemd; without a service manager, all methods do nothing."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Read from the environment whether systemd listens.

        Args:
            environ: environment of this process. The variables of sd_notify are removed, so that no other process of
                the service speaks for this one.
        """
        address, period, pid = (environ.pop(name, "") for name in _VARIABLES)
        self._socket: socket.socket | None = None
        self._watchdog_seconds = 0.0  # between signs of life; 0 if systemd asks for none
        if address[:1] in ("/", "@"):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self._address = address if address[0] == "/" else f"\0{address[1:]}"
        if self._socket is not None and period.isdigit() and pid in ("", str(os.getpid())):
            self._watchdog_seconds = int(period) / 1e6 / 3

    def tell(self, *words: str) -> None:
        """Send words such as READY in one message. Never waits."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # systemd restarts, or its socket is full
                self._socket.sendto("\n".join(words).encode(errors="replace"), self._address)

    def tell_status(self, sentence: str) -> None:
        """Send the sentence that `systemctl status` is to show."""
        self.tell(f"STATUS={' '.join(sentence.split())[:_LONGEST]}")

    def show_life(self, loop: Loop) -> None:
        """Send a sign of life, and schedule the next one in the event loop.

        Three are sent in the time after which systemd takes the service for stuck.
        """
        if self._watchdog_seconds:
            self.tell(_ALIVE)
            loop.call_at(time.monotonic() + self._watchdog_seconds, "watchdog", lambda: self.show_life(loop))
