"""Starts torch's worker server in a rank: an autopsy can ask it while the main thread is stuck.

The worker server answers on a unix socket from threads in C++. It tells of the last collectives (torch's flight
recorder) even while a thread holds the interpreter's lock. It is private in torch
(torch.distributed.elastic.control_plane): where it is missing, an autopsy goes by the stacks alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from ftlaunch_contract.protocol import witness_path


def start(memory_dir: Path, rank: int) -> None:
    """Start the worker server until this process ends; torch must have been imported."""
    path = witness_path(memory_dir, rank)
    # OSError: no standard error, or a path too long; RuntimeError: torch's, for everything
    with contextlib.suppress(ImportError, OSError, RuntimeError):
        from torch._C._distributed_c10d import _WorkerServer  # noqa: PLC0415 - torch calls us first

        path.unlink(missing_ok=True)  # the socket of the attempt before
        with _torch_being_quiet():
            server = _WorkerServer(str(path))
        # The server must never be destroyed: that would join its thread, which a forked child does not have.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


@contextlib.contextmanager
def _torch_being_quiet() -> Iterator[None]:
    """Hides the server's warning that it listens."""
    nowhere, kept = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), os.dup(2)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
