"""Finds what a test leaves behind: processes, and files in memory, with the mark of this pytest process.

The mark is an environment variable, which all processes that a test starts inherit, and a part of the names of files
that tests make in /dev/shm. The mark keeps parallel tests from being blamed for each other's leftovers.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable
from pathlib import Path

from ftlaunch_contract.protocol import memory_root
from tests.support.waiting import DEADLINE, wait_for

_NAME = "FT_TEST_RUN"
# Helpers of Python's multiprocessing, which end with the process that has used them; and the servers of a session.
_LASTING = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "-s3.autoCreateBucket=false",
    "azurite-blob --blobHost",
)


def mark() -> str:
    """Return the mark of this pytest process."""
    return os.environ[_NAME]


def set_mark() -> None:
    """Give this pytest process a mark of its own; each xdist worker calls this."""
    os.environ[_NAME] = uuid.uuid4().hex[:8]


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def assert_ended(pids: Iterable[int], seconds: float = DEADLINE) -> None:
    """Check that some processes end within `seconds`."""
    known = [*pids]
    wait_for(lambda: not any(map(alive, known)), f"the end of {known}", seconds)


def carriers(setting: str) -> list[int]:
    """Return the pids of all processes with `setting` (NAME=value) in their environment."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                if setting.encode() in file.read().split(b"\0") and alive(int(entry)):
                    found.append(int(entry))
    return found


def processes() -> list[str]:
    """Return pid and command line of each process with the mark, without pytest itself."""
    found = []
    for pid in carriers(f"{_NAME}={mark()}"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
            if pid != os.getpid() and not any(lasting in command for lasting in _LASTING):
                found.append(f"{pid}: {command}")
    return found


def files() -> list[str]:
    """Return the paths in memory whose names contain the mark."""
    places = (Path("/dev/shm"), memory_root(os.getuid()))
    return [path for place in places for path in _entries(place) if mark() in Path(path).name]


def _entries(place: Path) -> list[str]:
    """Return the paths in a folder, which the last job of another test may remove just now."""
    try:
        return [str(path) for path in place.iterdir()]
    except FileNotFoundError:
        return []
