"""Notes of a benchmark's job: what, rank, pid, monotonic time and step, one line each. Imports nothing slow."""

import os
import time
from pathlib import Path

RANK = int(os.environ.get("RANK", "0"))
_PATH = Path(os.environ["BENCH_NOTES"])
_FILE = os.open(_PATH, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(what: str, step: int = -1) -> None:
    """Note something now; each line is one write, so that lines of several ranks do not mix."""
    os.write(_FILE, f"{what} {RANK} {os.getpid()} {time.monotonic():.6f} {step}\n".encode())


def noted(what: str) -> int:
    """Return how often something was noted, by any rank in any attempt."""
    return sum(line.split()[0] == what for line in _PATH.read_text().splitlines())
