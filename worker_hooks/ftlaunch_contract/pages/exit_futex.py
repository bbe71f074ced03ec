"""A robust futex in a rank's page: the kernel wakes its waiters when the rank's main thread begins to end.

A pidfd becomes readable only when the kernel has freed everything that the process had: after 20 ms for a small model,
after seconds for much memory or a GPU. The kernel handles the robust futexes of a dying thread before that (futex(2),
set_robust_list(2)). So the rank locks one in its page and never unlocks it, and the supervisor waits on it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from pathlib import Path

from ftlaunch_contract.pages.page import SIZE
from ftlaunch_contract.pages.words import EXIT_FUTEX

# bits of a futex word, whose other bits are the id of the thread that holds the lock
WAITERS = 0x80000000
DIED = 0x40000000
_SHARED = 1  # PTHREAD_PROCESS_SHARED
_ROBUST = 1  # PTHREAD_MUTEX_ROBUST
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


def word(path: Path) -> ctypes.c_uint32:
    """Return the futex word in a page.

    The word stays mapped while this process lives, because the kernel reads it at the process's end.

    Raises:
        OSError: the page cannot be opened or mapped.
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
    """Lock the futex in a page with the calling thread. Raises OSError.

    Nothing is locked from another thread than the main one, or where the C library has no robust mutexes.
    """
    if threading.get_native_id() != os.getpid():
        return
    futex = word(path)
    mutex = ctypes.c_void_p(ctypes.addressof(futex))
    attributes = ctypes.create_string_buffer(64)
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
