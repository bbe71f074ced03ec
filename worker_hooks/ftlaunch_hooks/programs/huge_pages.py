"""Moves the memory of a process that is about to fork into huge pages. Standard library only; loaded as a file."""

from __future__ import annotations

import ctypes
from pathlib import Path

_MADV_COLLAPSE = 25  # see madvise(2)
_HUGE = 2 << 20  # bytes of a huge page


def use_huge_pages() -> None:
    """Move this process's private memory into huge pages, so that a fork copies fewer page table entries.

    A fork with a hundred pages takes a quarter of the time of a fork with fifty thousand. Kernels before Linux 6.1 and
    kernels without huge pages refuse; then nothing changes.
    """
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        area, access, *_, inode_or_name = line.split()
        if access != "rw-p" or inode_or_name not in ("0", "[heap]"):
            continue
        begin, end = (int(address, 16) for address in area.split("-"))
        for page in range(-(-begin // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
            madvise(ctypes.c_void_p(page), ctypes.c_size_t(_HUGE), _MADV_COLLAPSE)
