"""What benchmarks ask of the machine: where and when figures were measured, and processor time."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path


def machine() -> str:
    """Return a line for people: processor, versions and date."""
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    what = f"{os.cpu_count()} cores ({cpu.split(':')[1].strip()}), Python {platform.python_version()}"
    return f"{what}, torch {version('torch')}, Linux {platform.release()}, {time.strftime('%Y-%m-%d')}"


def cpu_seconds(pid: int) -> float:
    """Return the processor seconds of all threads of a process so far, as the scheduler counts them.

    Threads that end meanwhile count as 0, and so does a process that has gone.
    """
    nanoseconds = 0
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9
