"""Reads what the kernel logs while an attempt runs, and the OOM kills that it counts in our memory cgroup.

Both may be unreadable (containers, `dmesg_restrict`). A diagnosis then knows less, which is no error. No call waits.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_KMSG = Path("/dev/kmsg")
_RECORD = 8192  # bytes; each read returns one record, and none is longer
_MOST = 5000  # records that one call reads
_NO_LIMIT = 1 << 60  # bytes; without a limit, cgroup v1 shows a number near 2^63
_OOM_KILL = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class Kernel:
    """Follows the kernel's log and its counters of OOM kills."""

    def __init__(self, proc: Path = Path("/proc/self"), kmsg: Path = _KMSG) -> None:
        """Open the log, and begin.

        Args:
            proc: this process's folder in /proc. OOM kills of ranks are counted in its cgroup and those below.
            kmsg: the device of the kernel's log.
        """
        self._counters = oom_counters(proc)
        self._kills_at_begin: dict[Path, int] = {}
        self._log: int | None = None
        with contextlib.suppress(OSError):
            self._log = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.begin()

    def begin(self) -> None:
        """Skip everything that the kernel has logged and counted so far."""
        self._kills_at_begin = {path: _count_kills(path) for path in self._counters}
        if self._log is not None:
            with contextlib.suppress(OSError):
                os.lseek(self._log, 0, os.SEEK_END)

    def read_news(self) -> str:
        """Return the news as lines: the kernel's since the last call, and one for each counter that rose since begin().

        A line of a counter is in the kernel log's style, but is our own.
        """
        lines = self._read_log()
        for path, before in self._kills_at_begin.items():
            now = _count_kills(path)
            if now > before:
                lines.append(f"oom_kill of cgroup {path.parent} went from {before} to {now}{_limit(path.parent)}")
        return "\n".join(lines)

    def _read_log(self) -> list[str]:
        """Return the messages of the kernel's log since the last call."""
        lines: list[str] = []
        while self._log is not None and len(lines) < _MOST:
            try:
                record = os.read(self._log, _RECORD)
            except BrokenPipeError:  # some records were overwritten before they were read
                continue
            except OSError:  # there is no more for now
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
    """Say why the kernel's log cannot be read; empty if it can."""
    try:
        os.close(os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def oom_counters(proc: Path) -> list[Path]:
    """Return the files that count OOM kills in a process's cgroup, v2 and v1; none if they cannot be found.

    Args:
        proc: the process's folder in /proc.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        groups = _memory_groups((proc / "cgroup").read_text())
        mounts = (proc / "mountinfo").read_text().splitlines()
        files = (_counter_file(mount.split(), groups) for mount in mounts)
        return [file for file in files if file is not None and file.is_file()]
    return []


def _memory_groups(text: str) -> dict[str, str]:
    """Return the paths of the memory cgroups by type of file system, from the text of /proc/PID/cgroup."""
    groups = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            groups["cgroup2"] = path
        elif "memory" in controllers.split(","):
            groups["cgroup"] = path
    return groups


def _counter_file(mount: list[str], groups: dict[str, str]) -> Path | None:
    """Return the file that counts OOM kills below a mount point; None if the mount is no fitting cgroup.

    Args:
        mount: words of a line of mountinfo: ... root mount-point ... - type source options.
        groups: the result of `_memory_groups`.
    """
    root = mount[3]
    place = mount[4]
    kind = mount[mount.index("-") + 1]
    options = mount[-1]
    if kind not in groups or (kind == "cgroup" and "memory" not in options.split(",")):
        return None
    name = "memory.events" if kind == "cgroup2" else "memory.oom_control"
    inside = os.path.relpath(groups[kind], root)
    return None if inside.startswith("..") else Path(place, inside, name)


def _limit(group: Path) -> str:
    """Describe the memory limit of a cgroup, v2 or v1, as the end of a sentence; empty if there is no limit."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            if (limit := int((group / name).read_text())) < _NO_LIMIT:
                return f", limit {limit} bytes"
    return ""


def _count_kills(path: Path) -> int:
    """Return the number of OOM kills in a counter file; 0 if it cannot be read."""
    try:
        found = _OOM_KILL.search(path.read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0
