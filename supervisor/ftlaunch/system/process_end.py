"""Ends a process of ours, whatever its threads are doing."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

_STDERR = 2
_OUTPUT_LOST = 120  # Python's own exit code if printed text cannot be written


def leave(code: int) -> NoReturn:
    """Flush the output and end this process at once, without Python's own shutdown. Never raises.

    At its shutdown, Python ends every thread that still waits by force, for which glibc loads a library. If the library
    cannot be loaded, for lack of a descriptor or because its disk does not answer, the process is aborted: a job that
    is done would end with SIGABRT (`libgcc_s.so.1 must be installed for pthread_exit to work`).

    Args:
        code: exit code, which is replaced by 120 if the output cannot be written.
    """
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None if the stream was closed when this process was started
                stream.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(_STDERR, f"ftlaunch: cannot write what was printed: {error.strerror}\n".encode())
        os._exit(_OUTPUT_LOST)
    os._exit(code)
