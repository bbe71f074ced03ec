"""A rank's knell: rung by the kernel when the rank's main thread begins to end, before its memory is taken apart.

A process is over for those who wait for it when all that it had is given back: 20 ms for a small model, seconds for
much memory or a GPU. Its robust futexes are dealt with before that (futex(2), set_robust_list(2)): whoever sleeps on
one that the dying thread holds is woken first of all. The rank holds one in its page, and never lets go of it.
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
    """The futex word in a page, mapped for as long as this process lives: the kernel looks there when it ends.

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


def hang_up(path: Path) -> None:
    """Let it ring at the end of this thread, which must be the main one: elsewhere, and without glibc, it never rings.

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
    if futex.value == os.getpid():  # as glibc lays a mutex out
        futex.value |= WAITERS  # or the kernel wakes nobody
