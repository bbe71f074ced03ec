"""A robust futex in a rank's page: the kernel wakes who waits on it when the rank's main thread begins to end.

A pidfd becomes readable only when the kernel has given back all that the process had: after 20 ms for a small model,
after seconds for much memory or a GPU. The kernel handles the robust futexes of a dying thread before that (futex(2),
set_robust_list(2)). The rank locks one in its page and never unlocks it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from pathlib import Path

from ftlaunch_contract.pages.page import SIZE
from ftlaunch_contract.pages.words import EXIT_FUTEX

WAITERS, DIED = 0x80000000, 0x40000000  # bits of a futex word; the others are the thread's id
_SHARED = _ROBUST = 1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


def word(path: Path) -> ctypes.c_uint32:
    """The futex word in a page. It stays mapped while this process lives: the kernel looks there at the process's end.

    Raises OSError.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        address = _libc.mmap(None, SIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    finally:
        os.close(fd)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"cannot map {path}")
    return ctypes.c_uint32.from_address(address + 8 * EXIT_FUTEX)


def arm(path: Path) -> None:
    """Lock the futex in a page with this thread, which must be the main thread; without glibc nothing is locked.

    Raises OSError.
    """
    if threading.get_native_id() != os.getpid():
        return
    futex = word(path)
    mutex, attributes = ctypes.c_void_p(ctypes.addressof(futex)), ctypes.create_string_buffer(64)
    try:
        _libc.pthread_mutexattr_init(attributes)
        _libc.pthread_mutexattr_setpshared(attributes, _SHARED)
        _libc.pthread_mutexattr_setrobust(attributes, _ROBUST)
        _libc.pthread_mutex_init(mutex, attributes)
        _libc.pthread_mutex_lock(mutex)
    except AttributeError:
        return
    if futex.value == os.getpid():  # where glibc keeps the owner of a mutex
        futex.value |= WAITERS  # without this bit the kernel wakes nobody
