"""Prepares lines for systemd-journald: detects a stream that leads to the journal, and adds priorities (sd-daemon(3)).

Everything is pure, except `leads_to_journal`, which looks at a descriptor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import IntEnum

LONGEST = 32 << 10
"""most bytes of a line; journald cuts longer ones (LineMax in journald.conf), and reads a priority after each cut"""


class Priority(IntEnum):
    """The priority of a line, numbered as in syslog(3)."""

    ERROR = 3
    WARNING = 4
    INFO = 6


def leads_to_journal(fd: int, environ: Mapping[str, str]) -> bool:
    """Return whether systemd has connected a stream to the journal.

    JOURNAL_STREAM alone does not say so, because a process may inherit the variable and have another stream.

    Args:
        fd: descriptor of the stream.
        environ: environment of this process.
    """
    stream = environ.get("JOURNAL_STREAM", "")
    try:
        found = os.fstat(fd) if stream else None
    except OSError:  # the descriptor is closed
        return False
    return found is not None and stream == f"{found.st_dev}:{found.st_ino}"


def with_priority(line: str, priority: Priority) -> str:
    """Return the line with a priority in front, which overrides any priority in the line itself."""
    return f"<{priority:d}>{line}"


def harmless(line: bytes) -> bytes:
    """Escape zero bytes in a line of a rank, because journald ends a line at a zero byte as well."""
    return line.replace(b"\0", b"\\x00")
