"""Notices that a rank has begun to end, before the kernel has freed the rank's memory.

The mechanism is described in ftlaunch_contract/pages/exit_futex.py. A notice is a hint: the kernel decides which rank
is really ending (`processes.Leader.ended_by`). Without a notice (Linux before 5.16, a rank without hooks, no thread to
be had) the end is seen when it is over. The futexes are waited for in daemon threads; the event loop watches `fd`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from ftlaunch_contract.pages import exit_futex

_FUTEX_WAITV = 449  # number of the system call, the same on all architectures
_MOST = 128  # futexes of one call (FUTEX_WAITV_MAX)
_FUTEX_32 = 2  # flag for a futex of 32 bits
_syscall = ctypes.CDLL(None, use_errno=True).syscall


class _Waiter(ctypes.Structure):
    """The kernel's struct futex_waitv."""

    _fields_ = (
        ("val", ctypes.c_uint64),
        ("uaddr", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


def is_deaf() -> bool:
    """Return whether the kernel, or a seccomp filter, refuses to wait for several futexes at once."""
    # A call without futexes is invalid (EINVAL) wherever the system call exists and is allowed.
    return _syscall(_FUTEX_WAITV, None, 0, 0, None, 0) < 0 and ctypes.get_errno() != errno.EINVAL


class ExitWatch:
    """Watches all ranks of a job on this machine. `fd` becomes readable when a rank begins to end."""

    def __init__(self, pages: Sequence[Path]) -> None:
        """Start the threads that listen until this process ends.

        Args:
            pages: the pages of all ranks, in order of the ranks.

        Raises:
            OSError: a page cannot be mapped, or there is no descriptor left.
        """
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._words = [exit_futex.word(page) for page in pages]
        for start in range(0, len(self._words), _MOST):
            words = self._words[start : start + _MOST]
            with contextlib.suppress(RuntimeError):  # no thread can be started: ends are seen when they are over
                threading.Thread(target=self._listen, args=(words,), name="ftlaunch-exit-watch", daemon=True).start()

    def forget(self) -> None:
        """Reset all futexes between two attempts, while no rank lives."""
        for word in self._words:
            word.value = 0

    def read_dying(self) -> list[int]:
        """Make `fd` unreadable, and return the ranks that have begun to end."""
        os.eventfd_read(self.fd)
        return [rank for rank, word in enumerate(self._words) if word.value & exit_futex.DIED]

    def _listen(self, words: Sequence[ctypes.c_uint32]) -> None:
        """Wait for changes of at most 128 futexes, for ever, and make `fd` readable at each. Runs in a thread."""
        waiters = (_Waiter * len(words))()
        for waiter, word in zip(waiters, words, strict=True):
            waiter.uaddr = ctypes.addressof(word)
            waiter.flags = _FUTEX_32
        while True:
            before = [word.value for word in words]
            for waiter, value in zip(waiters, before, strict=True):
                waiter.val = value
            woken = _syscall(_FUTEX_WAITV, waiters, len(words), 0, None, 0)
            if woken < 0 and ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
                return
            has_died = any(word.value & ~value & exit_futex.DIED for word, value in zip(words, before, strict=True))
            if has_died or woken >= 0:
                os.eventfd_write(self.fd, 1)
