"""Lines for systemd-journald: whether a stream leads to it, and priorities before lines, see sd-daemon(3)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import IntEnum

LONGEST = 32 << 10
"""bytes of a line: journald cuts longer ones (LineMax in journald.conf), and looks for a priority behind each cut"""


class Priority(IntEnum):
    """How grave a line is, as syslog(3) counts."""

    ERROR = 3
    WARNING = 4
    INFO = 6


def leads_to_journal(fd: int, environ: Mapping[str, str]) -> bool:
    """Whether a stream is the one that systemd has connected to the journal: the variable may be inherited."""
    stream = environ.get("JOURNAL_STREAM", "")
    try:
        found = os.fstat(fd) if stream else None
    except OSError:  # it is closed
        return False
    return found is not None and stream == f"{found.st_dev}:{found.st_ino}"


def with_priority(line: str, priority: Priority) -> str:
    """A line whose priority is the one given, whatever the line begins with."""
    return f"<{priority:d}>{line}"


def harmless(line: bytes) -> bytes:
    """A line of somebody else's that journald takes for one line: it ends one at a zero byte, too."""
    return line.replace(b"\0", b"\\x00")
