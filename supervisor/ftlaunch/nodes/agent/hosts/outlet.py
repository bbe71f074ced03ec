"""Output that never blocks its writer: a thread writes it, and drops the oldest data that no reader takes in time.

The thread of reporting/terminal.py drops nothing of a rank's output, because what it has not written stands in the
rank's log. Here there is no file: what ssh has printed is gone from the pipe.
"""

from __future__ import annotations

import threading
from collections import deque

from ftlaunch.system.descriptors import lead_nowhere
from ftlaunch_contract.files import atomic

_MOST_WAITING = 1 << 20  # bytes that wait for the reader


class Outlet:
    """A descriptor that a thread writes to. A reader that is gone or takes nothing delays nobody."""

    def __init__(self, fd: int) -> None:
        """Start the thread.

        Args:
            fd: the descriptor to write to; stays open.

        Raises:
            RuntimeError: no thread can be started.
        """
        self._fd = fd
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._write, name=f"ftlaunch-outlet-{fd}", daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        """Have `data` written after what already waits; never block. The oldest data is dropped if too much waits."""
        with self._changed:
            self._waiting.append(data)
            self._size += len(data)
            while self._size > _MOST_WAITING and len(self._waiting) > 1:
                self._size -= len(self._waiting.popleft())
            self._changed.notify()

    def close(self, timeout_seconds: float) -> None:
        """Have the rest written, and wait for that for `timeout_seconds` at most."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_seconds)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                data = self._waiting.popleft()
                self._size -= len(data)
            try:
                atomic.write_all(self._fd, data)
            except OSError:
                lead_nowhere(self._fd)
