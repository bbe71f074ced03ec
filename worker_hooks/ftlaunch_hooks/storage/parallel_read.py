"""Reads files into tensors' memory: by pread, in several threads.

Copying out of a mapping costs a page fault every few KiB, which takes as long as the copy itself, and a single
thread leaves most of the memory's bandwidth unused.
"""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.progress import Advance, ignore

_STRETCH = 8 << 20  # bytes that a thread reads at a time
_MOST_THREADS = 8

Read = tuple[Path, int, int, int]  # file, offset in it, address in memory, bytes


def can_fill(tensor: Tensor) -> bool:
    """Whether a tensor's memory is one stretch of host memory."""
    return tensor.device.type == "cpu" and tensor.is_contiguous()


class Filling:
    """Reads to be done together. The tensors must live until `run` has returned."""

    def __init__(self, advance: Advance = ignore) -> None:
        """advance: told of bytes that are read."""
        self._advance = advance
        self._reads: dict[int, Read] = {}  # by address: tied tensors are read once

    def add(self, path: Path, offset: int, tensor: Tensor) -> None:
        """Fill `tensor`, one that `can_fill` accepts, with a file's bytes from `offset` on."""
        address = tensor.data_ptr()
        known = self._reads.get(address)
        if tensor.nbytes and (known is None or known[3] <= tensor.nbytes):  # a view begins where the whole does
            self._reads[address] = (path, offset, address, tensor.nbytes)

    def run(self) -> None:
        """Read all. Raises OSError, or Damaged where a file is too short."""
        shares, threads = _shares(list(self._reads.values())), _threads()
        if threads == 1 or sum(size for *_, size in self._reads.values()) <= _STRETCH:
            for share in shares:
                self._take(share)
            return
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(self._take, shares))

    def _take(self, share: list[Read]) -> None:
        _read_share(share)
        self._advance(sum(size for *_, size in share))


def _threads() -> int:
    """The processors, shared with the other ranks of the node, which restore at the same time."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(_MOST_THREADS, max(1, len(os.sched_getaffinity(0)) // ranks))


def _shares(reads: list[Read]) -> list[list[Read]]:
    """The reads in portions of one file and about `_STRETCH` bytes each; large ones are cut."""
    shares: list[list[Read]] = []
    room, last = 0, None
    for path, start, address, size in sorted(reads):
        for done in range(0, size, _STRETCH):
            count = min(_STRETCH, size - done)
            if path != last or room < count:
                shares.append([])
                room, last = _STRETCH, path
            shares[-1].append((path, start + done, address + done, count))
            room -= count
    return shares


def _read_share(share: list[Read]) -> None:
    fd = os.open(share[0][0], os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        for path, offset, address, size in share:
            memory, done = memoryview((ctypes.c_char * size).from_address(address)).cast("B"), 0
            while done < size:
                count = os.preadv(fd, [memory[done:]], offset + done)
                if not count:
                    raise Damaged(f"{path.name} is cut short")
                done += count
    finally:
        os.close(fd)
