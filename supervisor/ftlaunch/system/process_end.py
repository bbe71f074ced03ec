"""The end of a process of ours, whatever its threads are doing."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process with an exit code at once, without Python's own end.

    That one ends each thread by force that is still in some wait, for which glibc loads a library; where it cannot be
    loaded, for lack of a descriptor or because its disk does not answer, the process is aborted instead: a job that is
    done would end with SIGABRT (`libgcc_s.so.1 must be installed for pthread_exit to work`).
    """
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # one that was closed as this process was started
                stream.flush()
    except OSError:
        sys.exit(code)  # what was printed is lost: Python's own end says so
    os._exit(code)
