"""Starts torch's worker server in a rank, which an autopsy can query while the main thread is stuck.

The worker server answers on a unix socket from threads in C++. It reports the last collectives (torch's flight
recorder) even while a thread holds the interpreter's lock. The server is private in torch
(torch.distributed.elastic.control_plane); without it an autopsy uses the stacks alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from ftlaunch_contract.protocol import witness_path


def start(memory_dir: Path, rank: int) -> None:
    """Start the worker server, which runs until this process ends. torch must have been imported.

    If the server cannot be started, nothing happens.

    Args:
        memory_dir: the job's memory directory, in which the socket is made.
        rank: this process's rank.
    """
    path = witness_path(memory_dir, rank)
    # OSError: there is no standard error, or the path is too long. RuntimeError: torch raises it for everything.
    with contextlib.suppress(ImportError, OSError, RuntimeError):
        from torch._C._distributed_c10d import _WorkerServer  # noqa: PLC0415 - torch calls us first

        path.unlink(missing_ok=True)  # the socket of the previous attempt
        with _silenced_standard_error():
            server = _WorkerServer(str(path))
        # The server must never be destroyed: that would join its thread, which a forked child does not have.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


@contextlib.contextmanager
def _silenced_standard_error() -> Iterator[None]:
    """Hide the server's warning that it listens."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    kept = os.dup(2)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
