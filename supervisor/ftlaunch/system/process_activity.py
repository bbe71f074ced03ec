"""Measures signs of life of processes that do not report progress: processor time, input and output, logs, GPUs.

An idle process still wakes up from time to time, so only more than a few percent of a processor, or more than a few
blocks, between two measurements count as activity. All processes of a rank's session are added up, because data loaders
work for their rank.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_BUSY = 0.05  # share of a processor above which a session is active
_BYTES = 64 << 10  # bytes read and written above which a session is active


@dataclass(frozen=True)
class Usage:
    """What the living processes of a session have used so far. The usage of ended processes is not included."""

    seconds: float = 0.0  # processor time
    moved: int = 0  # bytes read and written
    logged: int = 0  # bytes of the log
    gpu: bool = False  # whether one of the processes has a GPU at work


def is_active(before: Usage, now: Usage, elapsed: float) -> bool:
    """Return whether the processes of a session did something between two measurements. Pure.

    Args:
        before: the earlier measurement.
        now: the later measurement.
        elapsed: seconds between the two.
    """
    return (
        now.gpu
        or now.logged > before.logged
        or now.moved - before.moved > _BYTES
        or now.seconds - before.seconds > _BUSY * elapsed
    )


def usage(leaders: Collection[int], logged: Mapping[int, int], on_gpu: Collection[int]) -> dict[int, Usage]:
    """Measure in one pass over /proc what sessions have used.

    Args:
        leaders: pids of the session leaders.
        logged: bytes in the log of each leader.
        on_gpu: pids of processes that have a GPU at work.

    Returns:
        The usage of each session, by the leader's pid.
    """
    gpu: set[int] = set()
    seconds = dict.fromkeys(leaders, 0.0)
    moved = dict.fromkeys(leaders, 0)
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
            continue  # the process has just ended
    return {
        leader: Usage(
            seconds=seconds[leader],
            moved=moved[leader],
            logged=logged[leader],
            gpu=leader in gpu,
        )
        for leader in leaders
    }


def work_of(pid: int) -> tuple[float, int]:
    """Return the processor seconds of a process, and the bytes that the process has read and written.

    Both are 0 if the process is gone, or may not be inspected.
    """
    place = Path(f"/proc/{pid}")
    try:
        fields = (place / "stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS, _moved(place / "io")
    except OSError:
        return 0.0, 0


def _moved(path: Path) -> int:
    """Return the bytes read and written by the process whose `io` file in /proc is given. Raises OSError."""
    try:
        counters = dict(line.split(b":") for line in path.read_bytes().splitlines())
    except PermissionError:  # the process has changed its user
        return 0
    return int(counters[b"rchar"]) + int(counters[b"wchar"])
