"""Measures this machine: memory, clock, ports, limits. The facts are judged in rules.py."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_STA_UNSYNC = 0x40
_TIME_ERROR = 5


def free_memory() -> int:
    """Bytes that can be had, within the limits of our control groups."""
    free = [int(psutil.virtual_memory().available)]
    for folder in _own_groups():
        try:
            most = (folder / "memory.max").read_text().strip()
            used = int((folder / "memory.current").read_text())
            cache = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue  # no memory controller here
        if most != "max":
            # The kernel gives up file caches when memory is wanted.
            free.append(int(most) - used + int(cache.get("inactive_file", 0)))
    return max(min(free), 0)


def _own_groups() -> list[Path]:
    """Our control group (version 2) and those around it."""
    try:
        own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    folder = _CGROUP / own[3:].lstrip("/")
    return [place for place in (folder, *folder.parents) if place.is_relative_to(_CGROUP)]


def free_room(folder: Path) -> int:
    """Bytes that we may still write there. Raises OSError."""
    told = os.statvfs(folder)
    return told.f_bavail * told.f_frsize


def why_no_port(address: str, number: int | None) -> str:
    """Why rank 0 could not listen there, or nothing. Listens to nobody."""
    try:
        kind, _, _, _, place = socket.getaddrinfo(address, number or 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the ranks' store does
            probe.bind(place)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def limits() -> tuple[int, int | None]:
    """Open files, and bytes of locked memory (None: no limit)."""
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0], None if memlock == resource.RLIM_INFINITY else memlock


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2); what comes after `status` is not looked at."""

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
    """Whether the kernel's clock is synchronised; None where the kernel does not say."""
    timex = _Timex()  # modes 0: only read
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    if state < 0:
        return None
    return state != _TIME_ERROR and not timex.status & _STA_UNSYNC
