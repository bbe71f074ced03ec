"""Which disks are full."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_ROOM = 1 << 20  # bytes: with less a disk is full


def full(places: Iterable[Path]) -> list[Path]:
    """Those of the places whose file system has no room, or no inodes, left: one place of each file system."""
    found: dict[int, Path] = {}
    for place in places:
        there = next((part for part in (place, *place.parents) if part.exists()), None)
        if there is None:
            continue
        told = os.statvfs(there)
        if (told.f_blocks and told.f_bavail * told.f_frsize < _ROOM) or (told.f_files and not told.f_favail):
            found.setdefault(there.stat().st_dev, there)
    return list(found.values())
