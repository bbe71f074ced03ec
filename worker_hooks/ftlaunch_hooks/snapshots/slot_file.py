"""Slots that GPUs write to by themselves: their memory registered with the CUDA driver, so that it is not moved."""

from __future__ import annotations

import mmap

import torch

from ftlaunch_hooks.process.say import say

_PORTABLE = 1  # cudaHostRegisterPortable: for all devices of this process


class Pinned:
    """Mapped memory, registered until `close`."""

    def __init__(self, mapped: mmap.mmap, size: int) -> None:
        """Raises torch.cuda.CudaError where the driver refuses (a limit on locked memory, for one)."""
        self._address = torch.frombuffer(mapped, dtype=torch.uint8, count=1).data_ptr()
        self._cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(int(self._cuda.cudaHostRegister(self._address, size, _PORTABLE)))

    def close(self) -> None:
        """Give the memory back, before it is unmapped."""
        torch.cuda.check_error(int(self._cuda.cudaHostUnregister(self._address)))


_refused = False


def pin(mapped: mmap.mmap, size: int) -> Pinned | None:
    """Register the memory; None where that is refused, which is said once: copies go through the driver's own."""
    global _refused  # noqa: PLW0603 - one process is one rank
    try:
        return Pinned(mapped, size)
    except torch.cuda.CudaError as error:
        if not _refused:
            _refused = True
            say(f"cannot pin the memory of snapshots: {error}; copies from GPUs are slower, and hold up the step")
        return None
