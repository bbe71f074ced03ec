"""Checks that replicas are equal: at the same step every rank hashes the same small part; the parts take turns.

Replicas are what DistributedDataParallel keeps equal (`replicated.py`): parameters and their optimizer state, as far as
they lie in this process's memory without gaps; tensors on a GPU are left out. The supervisor reads the digests from the
pages, and compares them. A part is about a 256th of all bytes, 16 MiB at most: hashing it takes half a millisecond, in
the thread that copies snapshots.
"""

from __future__ import annotations

import ctypes
import json
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import xxhash
from torch import Tensor

from ftlaunch_contract import protocol
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.pages.replica_record import NAMES, Told, tell
from ftlaunch_hooks.state.collector import TensorItem

_TURNS = 256  # parts, unless they became larger than _LARGEST
_LARGEST = 16 << 20  # bytes of a part, unless there were more than _MOST parts
_MOST = 2048  # parts: few enough for their number's bits in the page
_SMALLEST = 64 << 10  # bytes: no shorter tensor is split


class DigestPiece(NamedTuple):
    """A stretch of a tensor's bytes."""

    name: str
    tensor: Tensor
    begin: int
    end: int


class DigestPlan:
    """The replicas of a rank, in parts."""

    def __init__(self, items: Sequence[TensorItem]) -> None:
        """items: of a rank's state. Ranks that hold the same tensors make the same plan."""
        chosen = sorted((item for item in items if _can_be_compared(item)), key=lambda item: item.replica)
        total = sum(item.tensor.nbytes for item in chosen)
        most = max(min(total // _TURNS, _LARGEST), total // _MOST, 1)
        self.parts = _parts([piece for item in chosen for piece in _pieces(item, max(most, _SMALLEST))], most)
        self.names = [_name(part) for part in self.parts]
        said = "\n".join(f"{piece.name} {piece.begin} {piece.end}" for part in self.parts for piece in part)
        self.table = zlib.crc32(said.encode())

    def digest(self, index: int) -> int:
        """Hash one part, as it is now."""
        found = xxhash.xxh3_64()
        for piece in self.parts[index]:
            size = piece.end - piece.begin
            found.update((ctypes.c_char * size).from_address(piece.tensor.data_ptr() + piece.begin))
        return found.intdigest()


def _can_be_compared(item: TensorItem) -> bool:
    tensor = item.tensor
    return (
        bool(item.replica)
        and item.settled
        and tensor.device.type == "cpu"
        and tensor.nbytes > 0
        and tensor.is_contiguous()
    )


def _pieces(item: TensorItem, most: int) -> list[DigestPiece]:
    size = item.tensor.nbytes
    return [DigestPiece(item.replica, item.tensor, begin, min(begin + most, size)) for begin in range(0, size, most)]


def _parts(pieces: Sequence[DigestPiece], most: int) -> list[list[DigestPiece]]:
    """Small pieces together, up to `most` bytes a part."""
    numbers, number, filled = [], 0, 0
    for piece in pieces:
        size = piece.end - piece.begin
        if filled and filled + size > most:
            number, filled = number + 1, 0
        filled += size
        numbers.append(number)
    paired = zip(numbers, pieces, strict=True)
    return [[piece for _, piece in group] for _, group in groupby(paired, key=lambda pair: pair[0])]


def _name(part: Sequence[DigestPiece]) -> str:
    names = list(dict.fromkeys(piece.name for piece in part))
    return names[0] if len(names) == 1 else f"{names[0]} or one of {len(names) - 1} after it"


def asked_for(page: Page, ranks: int, directory: Path | None) -> ReplicaDigests | None:
    """What compares this rank's replicas, where the job asks for that. ranks: of the job. directory: see below."""
    every = int(os.environ.get(protocol.ENV_COMPARE_REPLICAS, "0"))
    return ReplicaDigests(page, every, directory) if every and ranks > 1 else None


class ReplicaDigests:
    """Writes digests of one rank's replicas into its page."""

    def __init__(self, page: Page, every: int, directory: Path | None) -> None:
        """every: steps between digests. directory: for the names of the parts; None: another rank writes them."""
        self._page, self._every, self._directory = page, every, directory
        self._items: Sequence[TensorItem] | None = None
        self._plan = DigestPlan(())
        self._next = self._count = 0

    def due(self, step: int, items: Sequence[TensorItem]) -> int | None:
        """The part to digest at `step`, or None. To be called in the training loop's thread."""
        if step < self._next:
            return None
        self._next = step + self._every
        if items is not self._items:
            self._items, self._plan = items, DigestPlan(items)
            self._write_names()
        if not self._plan.parts:
            return None
        self._count += 1
        return self._count % len(self._plan.parts)

    def tell(self, step: int, index: int) -> None:
        """Digest a part and write the digest into the page; the part must not change meanwhile."""
        tell(self._page, self._count, Told(step, index, self._plan.table, self._plan.digest(index)))

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
