"""What systemd-logind takes from a user whose last session ends."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

_SYSTEM_USERS = 999  # uids up to this one keep what they have, see logind.conf(5)


def logout_warning(uid: int, root: Path = Path("/")) -> str:
    """A sentence where /dev/shm may be emptied at this user's last logout; else nothing. root: for tests."""
    if uid <= _SYSTEM_USERS or not (root / f"run/systemd/users/{uid}").exists():
        return ""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    if (root / "var/lib/systemd/linger" / name).exists():
        return ""
    return (
        "systemd-logind may delete this job's memory in /dev/shm at your last logout (RemoveIPC in logind.conf):"
        " `loginctl enable-linger` keeps it"
    )


def warning_here() -> str:
    """That of the user who asks, on this machine."""
    return logout_warning(os.getuid())
