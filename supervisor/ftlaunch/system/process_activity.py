"""Signs of life of processes that say nothing of their progress: processor time, input and output, lines of log, GPUs.

A process that does nothing still wakes up now and then: what counts is more than a few percent of a processor,
or more than a few blocks, between two looks. The sum over a rank's session is taken: its data loaders work for it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_BUSY = 0.05  # of a processor
_BYTES = 64 << 10  # read and written


@dataclass(frozen=True)
class Usage:
    """What the processes of a session have used up to now; what ended processes had used is gone from it."""

    seconds: float = 0.0  # of processor time
    moved: int = 0  # bytes read and written
    logged: int = 0  # bytes of log
    gpu: bool = False  # one of its processes has a GPU that is at work


def is_active(before: Usage, now: Usage, elapsed: float) -> bool:
    """Whether the processes of a session did something in `elapsed` seconds. Pure."""
    return (
        now.gpu
        or now.logged > before.logged
        or now.moved - before.moved > _BYTES
        or now.seconds - before.seconds > _BUSY * elapsed
    )


def usage(leaders: Collection[int], logged: Mapping[int, int], on_gpu: Collection[int]) -> dict[int, Usage]:
    """Session leader's pid -> what its session has used. One pass over /proc.

    logged: bytes in the leaders' logs. on_gpu: pids of processes that have a GPU at work.
    """
    gpu: set[int] = set()
    seconds, moved = dict.fromkeys(leaders, 0.0), dict.fromkeys(leaders, 0)
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            fields = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
            session = int(fields[3])
            if session in seconds:
                seconds[session] += (int(fields[11]) + int(fields[12])) / _TICKS
                moved[session] += _moved(Path(entry.path, "io"))
                if int(entry.name) in on_gpu:
                    gpu.add(session)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    return {leader: Usage(seconds[leader], moved[leader], logged[leader], leader in gpu) for leader in leaders}


def work_of(pid: int) -> tuple[float, int]:
    """Return the seconds of processor time that a process has had, and the bytes that it has read and written.

    0 when it is gone, or cannot be looked at.
    """
    place = Path(f"/proc/{pid}")
    try:
        fields = (place / "stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS, _moved(place / "io")
    except OSError:
        return 0.0, 0


def _moved(path: Path) -> int:
    try:
        counters = dict(line.split(b":") for line in path.read_bytes().splitlines())
    except PermissionError:  # it has changed its user
        return 0
    return int(counters[b"rchar"]) + int(counters[b"wchar"])
