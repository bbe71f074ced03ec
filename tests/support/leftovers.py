"""What a test leaves behind: processes, and files in memory, that carry the mark of this pytest process.

The mark is an environment variable, which every process inherits that a test starts, and a part of the names that
tests give to what they make in /dev/shm. So a test is not blamed for what other tests make beside it.
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
# Python's own, which end with the process that has used multiprocessing
_LASTING = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def mark() -> str:
    """The mark of this pytest process."""
    return os.environ[_NAME]


def set_mark() -> None:
    """Give this pytest process a mark of its own; of several workers each calls this."""
    os.environ[_NAME] = uuid.uuid4().hex[:8]


def alive(pid: int) -> bool:
    """Whether a process runs: a zombie does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def assert_ended(pids: Iterable[int], seconds: float = DEADLINE) -> None:
    """Assert that these processes end within `seconds`."""
    known = [*pids]
    wait_for(lambda: not any(map(alive, known)), f"the end of {known}", seconds)


def carriers(setting: str) -> list[int]:
    """Pids of all processes with `setting` (NAME=value) in their environment."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                if setting.encode() in file.read().split(b"\0") and alive(int(entry)):
                    found.append(int(entry))
    return found


def processes() -> list[str]:
    """Pid and command line of every process with the mark, without pytest itself."""
    found = []
    for pid in carriers(f"{_NAME}={mark()}"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
            if pid != os.getpid() and not any(lasting in command for lasting in _LASTING):
                found.append(f"{pid}: {command}")
    return found


def files() -> list[str]:
    """Everything in memory whose name has the mark."""
    places = (Path("/dev/shm"), memory_root(os.getuid()))
    return [str(path) for place in places if place.exists() for path in place.iterdir() if mark() in path.name]
