"""Measures this machine: memory, disk space, clock, ports, limits. `rules` judges the measurements."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
from pathlib import Path

from ftlaunch_contract.files import memory_pools

_STA_UNSYNC = 0x40
_TIME_ERROR = 5


def free_memory() -> int:
    """Return the bytes of free memory, within the limits of this process's control groups."""
    return min(pool.available for pool in memory_pools.pools())


def nearest(folder: Path) -> Path:
    """Return the nearest part of a path that exists: the folder itself or one of its parents."""
    return next(part for part in (folder, *folder.parents) if part.exists())


def free_room(folder: Path) -> int:
    """Return the bytes that this user may still write to the file system of a folder. Raises OSError."""
    stats = os.statvfs(folder)
    return stats.f_bavail * stats.f_frsize


def why_no_port(address: str, number: int | None) -> str:
    """Return why rank 0 could not listen at an address; empty if it could. The probe binds, and accepts nothing.

    Args:
        address: host name or IP address.
        number: the port; None for any free port.
    """
    try:
        kind, _, _, _, place = socket.getaddrinfo(address, number or 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the ranks' store does
            probe.bind(place)
    except OSError as error:
        return error.strerror or str(error)
    except UnicodeError:
        return f"no host can be called {address!a}"
    return ""


def limits() -> tuple[int, int | None]:
    """Return the limits of open files and of locked memory in bytes (None: no limit)."""
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0], None if memlock == resource.RLIM_INFINITY else memlock


class _Timex(ctypes.Structure):
    """`struct timex` of adjtimex(2); fields after `status` are padding here."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def clock_synchronised() -> bool | None:
    """Return whether the kernel's clock is synchronised; None if the kernel does not say."""
    timex = _Timex()  # modes 0: only read
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    if state < 0:
        return None
    return state != _TIME_ERROR and not timex.status & _STA_UNSYNC
