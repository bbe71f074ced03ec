"""What the descriptors of another process lead to."""

from __future__ import annotations

import contextlib
import os


def descriptors(pid: int) -> list[str]:
    """A target for each descriptor of `pid`, as /proc names them; one that is closed meanwhile is left out."""
    targets = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            targets.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return targets
