"""What the kernel says and counts while an attempt runs: its log, and the OOM kills of our memory cgroup.

Both may be unreadable (containers, `dmesg_restrict`); then a diagnosis knows less, and that is no error.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_KMSG = Path("/dev/kmsg")
_RECORD = 8192  # bytes: the kernel gives one record a read, and none is longer
_MOST = 5000  # records read at once
_NO_LIMIT = 1 << 60  # cgroup v1 writes a number near 2^63 where there is no limit
_OOM_KILL = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class Kernel:
    """What the kernel has logged and counted since begin()."""

    def __init__(self, proc: Path = Path("/proc/self"), kmsg: Path = _KMSG) -> None:
        """proc: this process's folder in /proc; ranks are counted in its cgroup and in those below."""
        self._counters = oom_counters(proc)
        self._killed: dict[Path, int] = {}
        self._log: int | None = None
        with contextlib.suppress(OSError):
            self._log = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.begin()

    def begin(self) -> None:
        """Start anew: what was logged and counted before is not told."""
        self._killed = {path: _killed(path) for path in self._counters}
        if self._log is not None:
            with contextlib.suppress(OSError):
                os.lseek(self._log, 0, os.SEEK_END)

    def heard(self) -> str:
        """What has come since begin() or the last call: lines of the kernel log, and of our own on its counters."""
        lines = self._said()
        for path, before in self._killed.items():
            now = _killed(path)
            if now > before:
                lines.append(f"oom_kill of cgroup {path.parent} went from {before} to {now}{_limit(path.parent)}")
        return "\n".join(lines)

    def _said(self) -> list[str]:
        lines: list[str] = []
        while self._log is not None and len(lines) < _MOST:
            try:
                record = os.read(self._log, _RECORD)
            except BrokenPipeError:  # some were overwritten before they were read
                continue
            except OSError:  # no more, for now
                break
            if not record:
                break
            lines.append(record.decode(errors="replace").partition(";")[2].partition("\n")[0])
        return lines

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            os.close(self._log)
            self._log = None


def why_unreadable(kmsg: Path = _KMSG) -> str:
    """Why the kernel's log cannot be read; empty when it can."""
    try:
        os.close(os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def oom_counters(proc: Path) -> list[Path]:
    """The files that count OOM kills in the cgroup of the process with this folder in /proc, v2 and v1."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        groups = _memory_groups((proc / "cgroup").read_text())
        mounts = (proc / "mountinfo").read_text().splitlines()
        files = (_counter(mount.split(), groups) for mount in mounts)
        return [file for file in files if file is not None and file.is_file()]
    return []


def _memory_groups(text: str) -> dict[str, str]:
    """From the lines of /proc/PID/cgroup: type of file system -> path of the memory cgroup."""
    groups = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            groups["cgroup2"] = path
        elif "memory" in controllers.split(","):
            groups["cgroup"] = path
    return groups


def _counter(mount: list[str], groups: dict[str, str]) -> Path | None:
    """The counter below one line of mountinfo: ... root mount-point ... - type source options."""
    root, place, dash = mount[3], mount[4], mount.index("-")
    kind, options = mount[dash + 1], mount[-1]
    if kind not in groups or (kind == "cgroup" and "memory" not in options.split(",")):
        return None
    name = "memory.events" if kind == "cgroup2" else "memory.oom_control"
    inside = os.path.relpath(groups[kind], root)
    return None if inside.startswith("..") else Path(place, inside, name)


def _limit(group: Path) -> str:
    """What a cgroup may use, v2 or v1; empty where there is no limit."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            if (limit := int((group / name).read_text())) < _NO_LIMIT:
                return f", limit {limit} bytes"
    return ""


def _killed(path: Path) -> int:
    try:
        found = _OOM_KILL.search(path.read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0
