"""Warns of what systemd-logind deletes when a user's last session ends."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

_SYSTEM_USERS = 999  # files of users up to this uid are not deleted, according to logind.conf(5)


def logout_warning(uid: int, root: Path = Path("/")) -> str:
    """Return a sentence if this user's files in /dev/shm may be deleted at the last logout; otherwise an empty string.

    Args:
        uid: the user.
        root: root of the file system, which tests replace.
    """
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
    """Return the warning for the user of this process; empty if there is none."""
    return logout_warning(os.getuid())
