"""Parts of files that belong into tensors' memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ftlaunch_contract.checkpoint.tensor_file import Damaged

SHARE_BYTES = 8 << 20
"""that a thread reads at a time"""


@dataclass(frozen=True)
class Read:
    """Bytes of a file that belong into a part of a tensor's memory."""

    path: Path
    offset: int
    """of the bytes in the file"""
    target: Tensor
    """contiguous"""
    begin: int
    """where the part begins in the target, in bytes"""
    size: int
    """in bytes"""


def shares_of(reads: list[Read]) -> list[list[Read]]:
    """Divide the reads into shares of about `SHARE_BYTES`, each of one file and one device; large reads are cut."""
    shares: list[list[Read]] = []
    room = 0  # bytes until the newest share is full
    newest = None
    for read in sorted(reads, key=lambda read: (str(read.target.device), read.path, read.offset)):
        for done in range(0, read.size, SHARE_BYTES):
            size = min(SHARE_BYTES, read.size - done)
            part = Read(read.path, offset=read.offset + done, target=read.target, begin=done, size=size)
            if (read.path, read.target.device) != newest or room < part.size:
                shares.append([])
                room = SHARE_BYTES
                newest = read.path, read.target.device
            shares[-1].append(part)
            room -= part.size
    return shares


def read_into(share: Sequence[Read], addresses: Sequence[int]) -> None:
    """Read parts of one file into this process's memory.

    Args:
        share: the parts.
        addresses: where each part belongs.

    Raises:
        OSError: the file cannot be read.
        Damaged: it is too short.
    """
    path = share[0].path
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        for read, address in zip(share, addresses, strict=True):
            memory = memoryview((ctypes.c_char * read.size).from_address(address)).cast("B")
            done = 0
            while done < read.size:
                count = os.preadv(fd, [memory[done:]], read.offset + done)
                if not count:
                    raise Damaged(f"{path.name} is cut short")
                done += count
    finally:
        os.close(fd)
