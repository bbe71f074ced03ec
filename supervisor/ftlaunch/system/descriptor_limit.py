"""Raises the limit on open descriptors for a supervisor, which needs one for each rank and node, but not for ranks.

A login shell's soft limit is 1,024. A script may use select(), which refuses descriptors from that number on, so ranks
get the limit that the supervisor was started with.
"""

from __future__ import annotations

import contextlib
import resource

_MOST = 1 << 16  # descriptors
_inherited: tuple[int, int] | None = None  # soft and hard limit before they were raised


def raise_limit() -> None:
    """Raise this process's limit as far as allowed. A limit that cannot be raised stays as it is, without an error."""
    global _inherited  # noqa: PLW0603 - a process has one limit
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _inherited = (soft, hard)


def limit() -> int | None:
    """Return the number of descriptors that this process may have; None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def restore_limit() -> None:
    """Give a child the limit that its parent was started with. Safe between fork and exec, as a mere system call."""
    if _inherited is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, _inherited)
