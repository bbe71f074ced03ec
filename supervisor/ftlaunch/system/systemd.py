"""Talks to systemd as one of its services, and knows what its journal and logind do.

systemd is told that a service is ready, alive, or about to stop, and its status (sd_notify(3)); the supervisor or agent
does so in its event loop, and nothing is sent if systemd has not started the process. A stream that leads to journald
is detected, and its lines get priorities (sd-daemon(3)). logind deletes a user's files in /dev/shm at the last logout.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import time
from collections.abc import Mapping, MutableMapping
from enum import IntEnum
from pathlib import Path

from ftlaunch.system.loop import Loop

READY = "READY=1"
STOPPING = "STOPPING=1"
_ALIVE = "WATCHDOG=1"
STOP_COMMAND = "FTLAUNCH_STOP_COMMAND"
"""variable that a service has if systemd starts it again after each end: the command that stops it for good"""
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_LONGEST_STATUS = 400  # characters
LONGEST_JOURNAL_LINE = 32 << 10
"""most bytes of a line; journald cuts longer ones (LineMax in journald.conf), and reads a priority after each cut"""
_SYSTEM_USERS = 999  # files of users up to this uid are not deleted, according to logind.conf(5)


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

    def notify(self, *words: str) -> None:
        """Send words such as READY in one message. Never waits."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # systemd restarts, or its socket is full
                self._socket.sendto("\n".join(words).encode(errors="replace"), self._address)

    def notify_status(self, sentence: str) -> None:
        """Send the sentence that `systemctl status` is to show."""
        self.notify(f"STATUS={' '.join(sentence.split())[:_LONGEST_STATUS]}")

    def show_life(self, loop: Loop) -> None:
        """Send a sign of life, and schedule the next one in the event loop.

        Three are sent in the time after which systemd takes the service for stuck.
        """
        if self._watchdog_seconds:
            self.notify(_ALIVE)
            loop.call_at(time.monotonic() + self._watchdog_seconds, "watchdog", lambda: self.show_life(loop))


# --- the journal ----------------------------------------------------------------------------------------------


class Priority(IntEnum):
    """The priority of a line, numbered as in syslog(3)."""

    ERROR = 3
    WARNING = 4
    INFO = 6


def leads_to_journal(fd: int, environ: Mapping[str, str]) -> bool:
    """Return whether systemd has connected a stream to the journal.

    JOURNAL_STREAM alone does not say so, because a process may inherit the variable and have another stream.

    Args:
        fd: descriptor of the stream.
        environ: environment of this process.
    """
    stream = environ.get("JOURNAL_STREAM", "")
    try:
        found = os.fstat(fd) if stream else None
    except OSError:  # the descriptor is closed
        return False
    return found is not None and stream == f"{found.st_dev}:{found.st_ino}"


def with_priority(line: str, priority: Priority) -> str:
    """Return the line with a priority in front, which overrides any priority in the line itself."""
    return f"<{priority:d}>{line}"


def harmless(line: bytes) -> bytes:
    """Escape zero bytes in a line of a rank, because journald ends a line at a zero byte as well."""
    return line.replace(b"\0", b"\\x00")


# --- logout ---------------------------------------------------------------------------------------------------


def logout_warning(uid: int, root: Path = Path("/")) -> str:
    """Return a sentence if this user's files in /dev/shm may be deleted at the last logout; otherwise an empty string.

    Args:
        uid: the user.
        root: root of the file system, which tests replace.
    """
    if uid <= _SYSTEM_USERS or not (root / f"run/systemd/users/{uid}").exists():
        return ""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    if (root / "var/lib/systemd/linger" / name).exists():
        return ""
    return (
        "systemd-logind may delete this job's memory in /dev/shm at your last logout (RemoveIPC in logind.conf):"
        " `loginctl enable-linger` keeps it"
    )


def warning_here() -> str:
    """Return the warning for the user of this process; empty if there is none."""
    return logout_warning(os.getuid())
