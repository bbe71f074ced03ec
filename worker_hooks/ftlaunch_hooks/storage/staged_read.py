"""Brings files to accelerators through pinned memory, by several threads.

A copy from memory that is not pinned goes through a small buffer of the driver's, in the thread that asks for it. Here
each thread reads a file into pinned memory while the devices take what was read before.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor

from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.storage.file_reads import SHARE_BYTES, Read, read_into

_BUFFERS_A_THREAD = 2  # one is read into while a device takes what is in the other


@dataclass
class _Buffer:
    memory: Tensor
    """uint8"""
    taken: torch.Event | None = None
    """behind the copies from this memory that were queued last"""


class StagedReads:
    """The buffers for reads into tensors on devices. Use as a context: at its end, the devices have everything."""

    def __init__(self, reads: Sequence[Read], threads: int) -> None:
        """Wait for the devices, on which the script may still use these tensors, and make the buffers.

        Args:
            reads: all reads; call this in the thread that trains.
            threads: how many threads are to call `bring`.
        """
        device_port.wait_for_devices()
        self._streams = {read.target.device: device_port.own_stream(read.target.device) for read in reads}
        size = min(SHARE_BYTES, sum(read.size for read in reads))
        self._free: queue.SimpleQueue[_Buffer] = queue.SimpleQueue()
        for _ in range(_BUFFERS_A_THREAD * threads):
            self._free.put(_Buffer(device_port.allocate_pinned(size)))

    def bring(self, share: Sequence[Read]) -> None:
        """Read parts of one file, for one device, and queue their copies. Call this in a thread beside the script's.

        Raises:
            OSError: the file cannot be read.
            Damaged: it is too short.
        """
        device = share[0].target.device
        device_port.prepare_thread(device)
        buffer = self._free.get()
        try:
            if buffer.taken is not None:
                buffer.taken.synchronize()
            parts = torch.split(buffer.memory[: sum(read.size for read in share)], [read.size for read in share])
            read_into(share, [part.data_ptr() for part in parts])
            with self._streams[device], torch.no_grad():
                for read, part in zip(share, parts, strict=True):
                    target = read.target.view(-1).view(torch.uint8)
                    target[read.begin : read.begin + read.size].copy_(part, non_blocking=True)
            buffer.taken = device_port.record_event(self._streams[device])
        finally:
            self._free.put(buffer)

    def __enter__(self) -> StagedReads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until the devices have taken everything, whatever has happened: the memory is given back after this."""
        for stream in self._streams.values():
            stream.synchronize()
