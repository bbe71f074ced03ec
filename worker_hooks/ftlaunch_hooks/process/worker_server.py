"""A witness within a rank: torch's worker server, which can be asked while the main thread is stuck.

It answers on a unix socket from threads in C++, so it tells of the last collectives (torch's flight recorder) even
while somebody holds the interpreter's lock. Private in torch (torch.distributed.elastic.control_plane): where it is
missing there is no witness, and an autopsy goes by the stacks alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from ftlaunch_contract.protocol import witness_path


def call(memory_dir: Path, rank: int) -> None:
    """Start it, for the life of this process; torch must have been imported."""
    path = witness_path(memory_dir, rank)
    # OSError: no standard error, or a path too long; RuntimeError: torch's, for everything
    with contextlib.suppress(ImportError, OSError, RuntimeError):
        from torch._C._distributed_c10d import _WorkerServer  # noqa: PLC0415 - torch calls us first

        path.unlink(missing_ok=True)  # of the attempt before
        with _torch_being_quiet():
            server = _WorkerServer(str(path))
        # It must never be destroyed: that joins its thread, which a forked child does not have.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


@contextlib.contextmanager
def _torch_being_quiet() -> Iterator[None]:
    """Its warning that it listens is news to nobody."""
    nowhere, kept = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), os.dup(2)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
