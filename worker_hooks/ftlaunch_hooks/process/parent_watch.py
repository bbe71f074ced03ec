"""Lets a rank watch for the end of its supervisor, with which the rank ends.

The kernel sends SIGKILL to a rank whose supervisor dies (PR_SET_PDEATHSIG). Ranks that are not the supervisor's direct
children get no such signal, so every rank watches the supervisor, too.
"""

from __future__ import annotations

import os

from ftlaunch_contract.files.kernel_files import open_end
from ftlaunch_contract.protocol import ENV_SUPERVISOR, process_start_time


def supervisor_pidfd() -> int | None:
    """Open a descriptor that becomes readable when the supervisor ends.

    Returns:
        The descriptor, which the caller closes; None if this process has no supervisor.

    Raises:
        ProcessLookupError: the supervisor has ended already.
    """
    identity = os.environ.get(ENV_SUPERVISOR)
    if identity is None:
        return None
    pid, _, start = identity.partition(":")
    fd = open_end(int(pid))
    if process_start_time(int(pid)) != int(start):
        os.close(fd)
        raise ProcessLookupError(f"the supervisor (pid {pid}) is gone")
    return fd
