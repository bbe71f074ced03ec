"""Finds out what this node offers, without torch: the numbers of GPUs and CPUs, limits on files, and full disks."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterable, Mapping
from pathlib import Path

_LEAST_FREE = 1 << 20  # bytes; a disk with less free space is full


def count_gpus(environ: Mapping[str, str], root: Path = Path("/")) -> int:
    """Return the number of NVIDIA GPUs that a rank would see.

    Args:
        environ: environment of the rank. CUDA_VISIBLE_DEVICES is trusted up to its first bad entry, as CUDA does.
        root: root of the file system.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        count = 0
        for entry in visible.split(","):
            if not re.fullmatch(r"[0-9]+|(GPU|MIG)-\S+", entry.strip()):
                break
            count += 1
        return count
    nodes = [path for path in _listed(root / "dev") if re.fullmatch(r"nvidia[0-9]+", path)]
    return len(nodes) or len(_listed(root / "proc/driver/nvidia/gpus"))


def count_cpus() -> int:
    """Return the number of CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def most_file_bytes() -> int | None:
    """Return the most bytes of a file that this process or a rank writes (ulimit -f); None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if soft == resource.RLIM_INFINITY else soft


def full_disks(places: Iterable[Path]) -> list[Path]:
    """Return one path on each file system that has no space, or no inodes, left.

    Args:
        places: paths whose file systems are checked. For a missing path, its nearest existing parent is checked.
    """
    full: dict[int, Path] = {}  # by device
    for place in places:
        with contextlib.suppress(OSError):  # the path has just vanished, or its file system gives an error
            existing = next((part for part in (place, *place.parents) if part.exists()), None)
            if existing is not None and _is_full(os.statvfs(existing)):
                full.setdefault(existing.stat().st_dev, existing)
    return list(full.values())


def _is_full(system: os.statvfs_result) -> bool:
    """Return whether a file system is full. File systems that report no totals are never full."""
    has_no_room = bool(system.f_blocks) and system.f_bavail * system.f_frsize < _LEAST_FREE
    has_no_inodes = bool(system.f_files) and not system.f_favail
    return has_no_room or has_no_inodes


def _listed(folder: Path) -> list[str]:
    """Return the names in a folder; none if there is no such folder."""
    return [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
