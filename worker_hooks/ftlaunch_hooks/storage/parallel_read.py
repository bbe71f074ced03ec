"""Reads files directly into tensors' memory, by pread in several threads.

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

_SHARE_BYTES = 8 << 20  # that a thread reads at a time
_MAX_THREADS = 8

Read = tuple[Path, int, int, int]
"""a file, the offset in the file, the address in memory, and the number of bytes"""


def can_fill(tensor: Tensor) -> bool:
    """Whether a tensor's memory is one contiguous stretch of host memory."""
    return tensor.device.type == "cpu" and tensor.is_contiguous()


class Filling:
    """A set of reads that are done together. The tensors must live until `run` has returned."""

    def __init__(self, advance: Advance = ignore) -> None:
        """Begin with no reads. advance: told the number of bytes that are read, from several threads."""
        self._advance = advance
        self._reads: dict[int, Read] = {}  # by address: tied tensors are read once

    def add(self, path: Path, offset: int, tensor: Tensor) -> None:
        """Plan to fill `tensor`, which `can_fill` accepts, with a file's bytes from `offset` on."""
        address = tensor.data_ptr()
        known = self._reads.get(address)
        # A view may begin at the same address as the whole tensor; the longer read covers both.
        if tensor.nbytes and (known is None or known[3] <= tensor.nbytes):
            self._reads[address] = (path, offset, address, tensor.nbytes)

    def run(self) -> None:
        """Do all reads. Raises OSError, and Damaged where a file is too short."""
        shares = _shares(list(self._reads.values()))
        threads = _threads()
        if threads == 1 or sum(size for *_, size in self._reads.values()) <= _SHARE_BYTES:
            for share in shares:
                self._read(share)
            return
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(self._read, shares))

    def _read(self, share: list[Read]) -> None:
        _read_share(share)
        self._advance(sum(size for *_, size in share))


def _threads() -> int:
    """Return how many threads to use: this rank's part of the processors, as all ranks of the node restore together."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(_MAX_THREADS, max(1, len(os.sched_getaffinity(0)) // ranks))


def _shares(reads: list[Read]) -> list[list[Read]]:
    """Divide the reads into shares of one file and about `_SHARE_BYTES` each; large reads are cut."""
    shares: list[list[Read]] = []
    room = 0  # bytes until the newest share is full
    share_path = None
    for path, start, address, size in sorted(reads):
        for done in range(0, size, _SHARE_BYTES):
            count = min(_SHARE_BYTES, size - done)
            if path != share_path or room < count:
                shares.append([])
                room = _SHARE_BYTES
                share_path = path
            shares[-1].append((path, start + done, address + done, count))
            room -= count
    return shares


def _read_share(share: list[Read]) -> None:
    fd = os.open(share[0][0], os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        for path, offset, address, size in share:
            memory = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
            done = 0
            while done < size:
                count = os.preadv(fd, [memory[done:]], offset + done)
                if not count:
                    raise Damaged(f"{path.name} is cut short")
                done += count
    finally:
        os.close(fd)
