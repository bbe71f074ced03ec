"""The limit on open descriptors: raised for a supervisor, which has one for each rank and node, and not for ranks.

A login shell's soft limit is 1,024. A script may use select(), which refuses descriptors beyond that number: ranks get
the limit that the supervisor was started with.
"""

from __future__ import annotations

import contextlib
import resource

_MOST = 1 << 16
_inherited: tuple[int, int] | None = None


def raise_limit() -> None:
    """Raise this process's limit as far as it may; one that cannot be raised stays as it is: ask `limit` what it is."""
    global _inherited  # noqa: PLW0603 - a process has one limit
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _inherited = (soft, hard)


def limit() -> int | None:
    """Return how many descriptors this process may have; None where there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def restore_limit() -> None:
    """Give a child the limit back that its parent was started with. Between fork and exec: a system call only."""
    if _inherited is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, _inherited)
