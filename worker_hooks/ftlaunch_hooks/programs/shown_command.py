"""Changes the command line that `ps` shows for a process that was forked and has become another program.

Standard library only; loaded as a file by forked_rank.py, in a Python that may lack the hooks.

The kernel shows the memory into which it has once copied the arguments. prctl(PR_SET_MM) could show other memory, but
needs CAP_SYS_RESOURCE, or all bounds of the process at once, the heap's end included. Therefore the arguments are
overwritten in place, as setproctitle does. A forked process has its own copy of that memory, and nothing reads the copy
any more, as Python has read its arguments long ago. Only the name of the program is used later (by the C library, for
messages), and it stays as it is.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

# Numbers of fields in /proc/PID/stat, counted from the field after the program's name; see proc(5).
_ARG_START = 45
_ARG_END = 46


def show_command(argv: Sequence[str], stat: Path = Path("/proc/self/stat")) -> bool:
    """Overwrite the arguments that `ps` shows for this process.

    Arguments for which there is no room are cut off; the fork server is started with as much room as its ranks need.

    Args:
        argv: the arguments to show. The first must be the name that this process was started with.
        stat: /proc/PID/stat of this process.

    Returns:
        Whether the arguments were overwritten. They stay if the memory does not begin with the program's name.
    """
    wanted = b"".join(os.fsencode(word) + b"\0" for word in argv)
    try:
        fields = stat.read_bytes().rpartition(b")")[2].split()
        start = int(fields[_ARG_START])
        end = int(fields[_ARG_END])
        name = os.fsencode(argv[0]) + b"\0"
    except (OSError, ValueError, IndexError):
        return False
    room = end - start
    if start <= 0 or room < len(name) or ctypes.string_at(start, len(name)) != name:
        return False
    shown = wanted[: room - 1].ljust(room, b"\0")  # without a NUL as its last byte the kernel would read on
    ctypes.memmove(start, shown, room)
    return True
