"""Describes where and when figures were measured."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path


def machine() -> str:
    """Return a line for people: processor, versions and date."""
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    what = f"{os.cpu_count()} cores ({cpu.split(':')[1].strip()}), Python {platform.python_version()}"
    return f"{what}, torch {version('torch')}, Linux {platform.release()}, {time.strftime('%Y-%m-%d')}"
