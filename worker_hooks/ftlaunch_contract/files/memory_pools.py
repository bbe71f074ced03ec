"""Limits on memory: the machine's, and those of every memory cgroup that the calling process is in (v2 and v1).

Pages of tmpfs are charged to the cgroup of the process that touches them first, whatever statvfs(2) says about the file
system. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_NO_LIMIT = 1 << 60  # cgroup v1 writes a number near 2^63 where there is no limit
# The file of the limit, the file of the usage, and the entry of memory.stat that counts reclaimable file caches.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


class MemoryPool(NamedTuple):
    """Memory with a limit, in bytes."""

    limit: int
    available: int
    """bytes to be had without swapping or killing: file caches that the kernel gives up count as free"""


def pools(proc: Path = Path("/proc")) -> list[MemoryPool]:
    """Return the machine's memory, and that of each of our cgroups with a limit. What cannot be read is left out.

    Args:
        proc: where procfs is mounted.
    """
    found = []
    try:
        meminfo = dict(line.split(":") for line in (proc / "meminfo").read_text().splitlines())  # in KiB
        total = int(meminfo["MemTotal"].split()[0]) << 10
        available = int(meminfo["MemAvailable"].split()[0]) << 10
        found.append(MemoryPool(limit=total, available=available))
    except (OSError, ValueError, KeyError):
        pass
    for folder, names in _groups(proc / "self"):
        try:
            limit, used = (int((folder / name).read_text()) for name in names[:2])  # `max` is no number: no limit
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if limit < _NO_LIMIT:
            found.append(MemoryPool(limit, max(limit - used + int(stat.get(names[2], 0)), 0)))
    return found


def _groups(process: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Yield the folder and the file names (`_V1` or `_V2`) of each memory cgroup of a process, parents included."""
    try:
        lines = [line.split(":", 2) for line in (process / "cgroup").read_text().splitlines()]
        mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    except OSError:
        return
    for mount in mounts:
        root = mount[3]
        mount_point = Path(mount[4])
        kind = mount[mount.index("-") + 1]
        options = mount[-1].split(",")
        if kind not in ("cgroup", "cgroup2") or (kind == "cgroup" and "memory" not in options):
            continue
        controller = "" if kind == "cgroup2" else "memory"
        names = _V2 if kind == "cgroup2" else _V1
        for _, controllers, path in lines:
            if controller in controllers.split(","):
                inside = os.path.relpath(path, root)
                folder = mount_point if inside.startswith("..") else Path(os.path.normpath(mount_point / inside))
                yield folder, names
                for parent in folder.parents:
                    if parent.is_relative_to(mount_point):
                        yield parent, names
