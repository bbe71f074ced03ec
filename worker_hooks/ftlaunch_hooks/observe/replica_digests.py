"""Hashes replicas so that the supervisor can check that they are equal: at the same step every rank hashes one part.

Replicas are the tensors that DistributedDataParallel keeps equal (`replicated.py`), and DTensors that every rank holds
whole: parameters and their optimizer state, as far as they lie in memory without gaps. What lies on a device is fetched
for that. The parts of the replicas take turns. The supervisor reads the digests from the pages, and compares them. A
part is about a 256th of all bytes, 16 MiB at most. Hashing a part takes half a millisecond.
"""

from __future__ import annotations

import ctypes
import json
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
import xxhash
from torch import Tensor

from ftlaunch_contract import protocol
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.pages.replica_record import NAMES, ReplicaDigest, write_digest
from ftlaunch_hooks.devices.device_port import is_on_device
from ftlaunch_hooks.state.collector import TensorItem
from ftlaunch_hooks.tensors.memory_layout import is_memory_of_values

_WANTED_PARTS = 256
"""number of parts, unless a part would be larger than _LARGEST_PART"""
_LARGEST_PART = 16 << 20
"""bytes of a part, unless there would be more than _MOST_PARTS"""
_MOST_PARTS = 2048
"""number of parts that the bits in the page can count"""
_LEAST_SPLIT = 64 << 10
"""bytes of the shortest piece of a tensor that is split"""


class DigestPiece(NamedTuple):
    """A stretch of a tensor's bytes."""

    name: str
    """name of the replica"""
    tensor: Tensor
    begin: int
    """offset of the first byte"""
    end: int
    """offset behind the last byte"""


class DigestPlan:
    """The replicas of a rank, divided into parts."""

    def __init__(self, items: Sequence[TensorItem]) -> None:
        """Divide the replicas among `items`, the tensors of a rank's state. Equal tensors get equal plans."""
        chosen = sorted((item for item in items if _can_be_compared(item)), key=lambda item: item.replica)
        total = sum(item.tensor.nbytes for item in chosen)
        part_bytes = max(min(total // _WANTED_PARTS, _LARGEST_PART), total // _MOST_PARTS, 1)
        piece_bytes = max(part_bytes, _LEAST_SPLIT)
        self.parts = _parts([piece for item in chosen for piece in _pieces(item, piece_bytes)], part_bytes)
        self.names = [_name(part) for part in self.parts]
        """a name for each part, for the user"""
        layout = "\n".join(f"{piece.name} {piece.begin} {piece.end}" for part in self.parts for piece in part)
        self.table = zlib.crc32(layout.encode())
        """checksum of the division: digests of equal tables can be compared"""

    def digest(self, index: int) -> int:
        """Hash the present content of one part."""
        digest = xxhash.xxh3_64()
        for piece in self.parts[index]:
            tensor, begin = piece.tensor, piece.begin
            if is_on_device(tensor):
                tensor, begin = tensor.view(-1).view(torch.uint8)[begin : piece.end].cpu(), 0
            digest.update((ctypes.c_char * (piece.end - piece.begin)).from_address(tensor.data_ptr() + begin))
        return digest.intdigest()


def _can_be_compared(item: TensorItem) -> bool:
    tensor = item.tensor
    return bool(item.replica) and item.settled and tensor.nbytes > 0 and is_memory_of_values(tensor)


def _pieces(item: TensorItem, most_bytes: int) -> list[DigestPiece]:
    """Divide a tensor into pieces of at most `most_bytes`."""
    size = item.tensor.nbytes
    return [
        DigestPiece(name=item.replica, tensor=item.tensor, begin=begin, end=min(begin + most_bytes, size))
        for begin in range(0, size, most_bytes)
    ]


def _parts(pieces: Sequence[DigestPiece], most_bytes: int) -> list[list[DigestPiece]]:
    """Join small neighbouring pieces into parts of up to `most_bytes`. A larger piece is a part of its own."""
    parts: list[list[DigestPiece]] = []
    filled_bytes = 0
    for piece in pieces:
        size = piece.end - piece.begin
        if not parts or (filled_bytes and filled_bytes + size > most_bytes):
            parts.append([])
            filled_bytes = 0
        parts[-1].append(piece)
        filled_bytes += size
    return parts


def _name(part: Sequence[DigestPiece]) -> str:
    names = list(dict.fromkeys(piece.name for piece in part))
    return names[0] if len(names) == 1 else f"{names[0]} or one of {len(names) - 1} after it"


def asked_for(page: Page, ranks: int, directory: Path | None) -> ReplicaDigests | None:
    """Return the ReplicaDigests of this rank if the job asks for a comparison of replicas, otherwise None.

    Args:
        page: the page of this rank.
        ranks: number of ranks of the job.
        directory: folder for the names of the parts; None if another rank writes them.
    """
    every = int(os.environ.get(protocol.ENV_COMPARE_REPLICAS, "0"))
    return ReplicaDigests(page, every, directory) if every and ranks > 1 else None


class ReplicaDigests:
    """Writes digests of one rank's replicas into the rank's page."""

    def __init__(self, page: Page, every: int, directory: Path | None) -> None:
        """Begin without a plan.

        Args:
            page: the page of this rank.
            every: number of steps between two digests.
            directory: folder for the names of the parts; None if another rank writes them.
        """
        self._page = page
        self._every = every
        self._directory = directory
        self._items: Sequence[TensorItem] | None = None
        """the tensors for which the plan was made"""
        self._plan = DigestPlan(())
        self._next_step = 0
        """the step at which the next digest is due"""
        self._count = 0
        """number of digests so far"""

    def due(self, step: int, items: Sequence[TensorItem]) -> int | None:
        """Return the index of the part to digest at `step`, or None. Call this in the thread that trains.

        Args:
            step: number of the step.
            items: the tensors of the rank's state.
        """
        if step < self._next_step:
            return None
        self._next_step = step + self._every
        if items is not self._items:
            self._items = items
            self._plan = DigestPlan(items)
            self._write_names()
        if not self._plan.parts:
            return None
        self._count += 1
        return self._count % len(self._plan.parts)

    def record_digest(self, step: int, index: int) -> None:
        """Write the digest of a part into the page, in the thread that copies. The part must not change meanwhile."""
        digest = self._plan.digest(index)
        entry = ReplicaDigest(step=step, part=index, table=self._plan.table, digest=digest)
        write_digest(self._page, self._count, entry)

    def _write_names(self) -> None:
        if self._directory is None:
            return
        path = self._directory / NAMES
        temporary = path.with_name(f"{NAMES}.tmp")
        with suppress(OSError):  # without the file the supervisor names a part by its number
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w") as file:
                json.dump(self._plan.names, file)
            temporary.rename(path)
