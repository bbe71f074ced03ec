"""Hears that a rank has begun to end, before the kernel has taken it apart: see ftlaunch_contract/pages/exit_futex.py.

A hint: who is really ending says the kernel (`proc.Leader.ended_by`). Where nothing is heard (Linux before 5.16, a rank
without hooks, no thread to be had) the end is seen when it is over, as ever.
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

_FUTEX_WAITV = 449  # the same on all architectures
_MOST = 128  # futexes of one call
_FUTEX_32 = 2
_syscall = ctypes.CDLL(None, use_errno=True).syscall


class _Waiter(ctypes.Structure):
    """struct futex_waitv."""

    _fields_ = (
        ("val", ctypes.c_uint64),
        ("uaddr", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


def is_deaf() -> bool:
    """Whether the kernel, or a seccomp filter, refuses to wait for several futexes at once."""
    return _syscall(_FUTEX_WAITV, None, 0, 0, None, 0) < 0 and ctypes.get_errno() != errno.EINVAL


class ExitWatch:
    """Of all ranks of a job. `fd` becomes readable when a rank begins to end."""

    def __init__(self, pages: Sequence[Path]) -> None:
        """Listen, in threads of its own, until this process ends. Raises OSError."""
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._words = [exit_futex.word(page) for page in pages]
        for start in range(0, len(self._words), _MOST):
            words = self._words[start : start + _MOST]
            with contextlib.suppress(RuntimeError):  # no thread may be started
                threading.Thread(target=self._listen, args=(words,), name="ftlaunch-exit-watch", daemon=True).start()

    def forget(self) -> None:
        """No rank lives: what was heard is over."""
        for word in self._words:
            word.value = 0

    def heard(self) -> list[int]:
        """The ranks that have begun to end."""
        os.eventfd_read(self.fd)
        return [rank for rank, word in enumerate(self._words) if word.value & exit_futex.DIED]

    def _listen(self, words: Sequence[ctypes.c_uint32]) -> None:
        waiters = (_Waiter * len(words))()
        for waiter, word in zip(waiters, words, strict=True):
            waiter.uaddr, waiter.flags = ctypes.addressof(word), _FUTEX_32
        while True:
            before = [word.value for word in words]
            for waiter, value in zip(waiters, before, strict=True):
                waiter.val = value
            woken = _syscall(_FUTEX_WAITV, waiters, len(words), 0, None, 0)
            if woken < 0 and ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
                return
            if (
                any(word.value & ~value & exit_futex.DIED for word, value in zip(words, before, strict=True))
                or woken >= 0
            ):
                os.eventfd_write(self.fd, 1)
