"""The file that a rank writes its stacks to when STACKS_SIGNAL comes: reads what is added to it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

_STACKS = 0.6  # seconds for a process to write its stacks
_QUIET = 0.05  # seconds without a new line after which stacks are complete
_POLL = 0.005


def size(path: Path) -> int:
    """Bytes that are there; none where there is no file."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def added(path: Path, begin: int) -> str:
    """What is written behind `begin` bytes, once no more comes; empty where nothing comes in 0.6 s."""
    until, end, changed = time.monotonic() + _STACKS, begin, time.monotonic()
    while (now := time.monotonic()) < until and (end == begin or now - changed < _QUIET):
        time.sleep(_POLL)
        if (new := size(path)) != end:
            end, changed = new, time.monotonic()
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(begin)
        return file.read(end - begin).decode(errors="replace")
    return ""
