"""Shows to what the descriptors of another process lead."""

from __future__ import annotations

import contextlib
import os


def descriptors(pid: int) -> list[str]:
    """Return the target of each descriptor of `pid`, as /proc names it.

    A descriptor that is closed in the meantime is left out.
    """
    targets = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            targets.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return targets
