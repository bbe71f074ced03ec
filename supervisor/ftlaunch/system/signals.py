"""Signals to the supervisor, as bytes on a descriptor that the loop waits on."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable
from types import TracebackType
from typing import Any


class Signals:
    """Handlers that do nothing, and a wake-up descriptor. An inherited SIG_IGN stays as it is (nohup)."""

    def __init__(self, names: Iterable[str]) -> None:
        """names: as SIGTERM; SIGINT is heard always. Main thread only."""
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
        """The numbers of the signals that have come; empty when there are none."""
        try:
            return self._read.recv(64)
        except BlockingIOError:
            return b""


def _note(signum: int, frame: object) -> None:
    """Does nothing: the wake-up descriptor tells the loop."""
