"""Turns signals to the supervisor into bytes on a descriptor that the event loop watches."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable
from types import TracebackType
from typing import Any


class Signals:
    """A context in which signals make `fd` readable. A signal that was ignored at the start stays ignored (nohup)."""

    def __init__(self, names: Iterable[str]) -> None:
        """Prepare the descriptor. Use the context in the main thread only.

        Args:
            names: names of signals such as SIGTERM. SIGINT is always among them.
        """
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self.fd = self._read.fileno()
        self._numbers = {getattr(signal, name) for name in {*names, "SIGINT"}}
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._old_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        for number in self._numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._old[number] = signal.signal(number, _note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._read.close()
        self._write.close()

    def read(self) -> bytes:
        """Return the numbers of the signals that have come, one byte each; empty if there are none."""
        try:
            return self._read.recv(64)
        except BlockingIOError:
            return b""


def _note(signum: int, frame: object) -> None:
    """Do nothing: Python writes the signal's number to the wake-up descriptor, which suffices."""
