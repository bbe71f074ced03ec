"""The end of a process of ours, whatever its threads are doing."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

_STDERR = 2
_OUTPUT_LOST = 120  # Python's own exit code where what was printed cannot be written


def leave(code: int) -> NoReturn:
    """End this process with an exit code at once, without Python's own end. Never raises: a forked head ends so, too.

    That one ends each thread by force that is still in some wait, for which glibc loads a library; where it cannot be
    loaded, for lack of a descriptor or because its disk does not answer, the process is aborted instead: a job that is
    done would end with SIGABRT (`libgcc_s.so.1 must be installed for pthread_exit to work`).
    """
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # one that was closed as this process was started
                stream.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(_STDERR, f"ftlaunch: cannot write what was printed: {error.strerror}\n".encode())
        os._exit(_OUTPUT_LOST)
    os._exit(code)
