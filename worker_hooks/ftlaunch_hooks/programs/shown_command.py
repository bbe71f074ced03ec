"""The command line that `ps` shows of a process that was forked, and is another program from then on.

Standard library only; loaded as a file by forked_rank.py, in a Python that may lack the hooks.

The kernel shows the memory into which it has once copied the arguments. prctl(PR_SET_MM) could show other memory, but
needs CAP_SYS_RESOURCE, or all bounds of the process at once, the heap's end included. So the arguments are overwritten
where they are, as setproctitle does: in a process that was forked it is a copy of its own, and nobody reads it, for
Python has read its arguments long ago. Only the name of the program is used later (by the C library, for messages): it
stays as it is.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

_ARG_START, _ARG_END = 45, 46  # fields of /proc/PID/stat behind the name of the program, see proc(5)


def show_command(argv: Sequence[str], stat: Path = Path("/proc/self/stat")) -> bool:
    """Have `ps` show other arguments of this process; return whether it does.

    What has no room is cut off: the fork server is started with as much as its ranks need. Nothing is written where the
    program is another one than was started.
    """
    wanted = b"".join(os.fsencode(word) + b"\0" for word in argv)
    try:
        fields = stat.read_bytes().rpartition(b")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        name = os.fsencode(argv[0]) + b"\0"
    except (OSError, ValueError, IndexError):
        return False
    room = end - start
    if start <= 0 or room < len(name) or ctypes.string_at(start, len(name)) != name:
        return False
    shown = wanted[: room - 1].ljust(room, b"\0")  # the last byte must be NUL: else the kernel reads on
    ctypes.memmove(start, shown, room)
    return True
