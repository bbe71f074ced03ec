"""How much memory can be had: of the machine, and of every memory cgroup that a process is in (v2 and v1).

Pages of tmpfs are charged to the cgroup of the process that touches them first, whatever statvfs(2) says of the file
system. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_NO_LIMIT = 1 << 60  # cgroup v1 writes a number near 2^63 where there is no limit
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


class MemoryPool(NamedTuple):
    """Memory with a limit, in bytes."""

    limit: int
    available: int
    """what can be had without swapping or killing: file caches that the kernel gives up count as free"""


def pools(proc: Path = Path("/proc")) -> list[MemoryPool]:
    """The machine's memory, and that of each of our cgroups with a limit; what cannot be read is left out."""
    found = []
    try:
        told = dict(line.split(":") for line in (proc / "meminfo").read_text().splitlines())
        found.append(MemoryPool(*(int(told[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))))
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
    """Folders of the memory cgroups of a process, and of all around them, with the names of their files."""
    try:
        lines = [line.split(":", 2) for line in (process / "cgroup").read_text().splitlines()]
        mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    except OSError:
        return
    for mount in mounts:
        root, place, kind, options = mount[3], Path(mount[4]), mount[mount.index("-") + 1], mount[-1].split(",")
        if kind not in ("cgroup", "cgroup2") or (kind == "cgroup" and "memory" not in options):
            continue
        wanted = "" if kind == "cgroup2" else "memory"
        for _, controllers, path in lines:
            if wanted in controllers.split(","):
                inside = os.path.relpath(path, root)
                folder = place if inside.startswith("..") else Path(os.path.normpath(place / inside))
                around = [folder, *(above for above in folder.parents if above.is_relative_to(place))]
                yield from ((each, _V2 if kind == "cgroup2" else _V1) for each in around)
