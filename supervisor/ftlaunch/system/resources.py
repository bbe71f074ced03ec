"""What this node offers, without torch: how many GPUs and CPUs, and which disks are full."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterable, Mapping
from pathlib import Path

_ROOM = 1 << 20  # bytes: with less a disk is full


def count_gpus(environ: Mapping[str, str], root: Path = Path("/")) -> int:
    """NVIDIA GPUs that a rank would see; CUDA_VISIBLE_DEVICES is believed, up to its first bad entry."""
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
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def most_file_bytes() -> int | None:
    """Return the bytes that a file may have which this process or a rank writes (ulimit -f); None without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if soft == resource.RLIM_INFINITY else soft


def full_disks(places: Iterable[Path]) -> list[Path]:
    """Those of the places whose file system has no room, or no inodes, left: one place of each file system."""
    found: dict[int, Path] = {}
    for place in places:
        with contextlib.suppress(OSError):  # gone meanwhile, or its file system does not answer: nothing is known
            there = next((part for part in (place, *place.parents) if part.exists()), None)
            if there is not None and _is_full(os.statvfs(there)):
                found.setdefault(there.stat().st_dev, there)
    return list(found.values())


def _is_full(system: os.statvfs_result) -> bool:
    has_no_room = bool(system.f_blocks) and system.f_bavail * system.f_frsize < _ROOM
    has_no_inodes = bool(system.f_files) and not system.f_favail
    return has_no_room or has_no_inodes


def _listed(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
