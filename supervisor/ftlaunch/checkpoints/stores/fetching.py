"""Reads the files of a stored checkpoint: into a directory, or only to compare them with their checksums.

A file is read in blocks of `checksums.BLOCK` bytes, each by a request of its own, because large providers limit what
one connection may receive. The bytes of a block arrive in order: they are hashed on the way, and not read again.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ftlaunch.checkpoints.stores.index import StoredFile, StoredStep
from ftlaunch.checkpoints.stores.store import CheckpointStore, Spent
from ftlaunch_contract.checkpoint import verify
from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.files import checksums
from ftlaunch_contract.progress import Advance, ignore

_THREADS = 16  # blocks that are read at the same time; each holds a piece or two in memory


@dataclass(frozen=True)
class _Block:
    """A part of a file that is read by one request."""

    name: str
    """of the file"""
    file: StoredFile
    begin: int
    end: int

    @property
    def part(self) -> tuple[int, int] | None:
        """What the store is asked for. A file of one block is asked for as a whole, which shows its size."""
        return None if self.file.bytes <= checksums.BLOCK else (self.begin, self.end)


def fetch_object(store: CheckpointStore, name: str, path: Path, spent: Spent = ignore) -> None:
    """Write an object to a file. The caller checks the content.

    Args:
        store: the store.
        name: the object.
        path: the file, which is created or replaced.
        spent: called with the bytes of each piece.

    Raises:
        FileNotFoundError: there is no such object.
        OSError: the store does not answer, or the file cannot be written.
    """
    with path.open("wb") as file:
        for piece in store.read_pieces(name):
            file.write(piece)
            spent(len(piece))


def fetch_files(store: CheckpointStore, stored: StoredStep, target: Path, advance: Advance = ignore) -> None:
    """Write the files of a checkpoint into a directory, and verify them.

    Args:
        store: the store.
        stored: the checkpoint.
        target: the directory.
        advance: told the bytes that were received.

    Raises:
        Damaged: an object is missing, or has another size or content; or the files are not those of a checkpoint.
        OSError: the store does not answer, or the directory cannot be written.
    """
    verify.verify_hashed(target, _read_files(store, stored, target, advance))


def find_damage(store: CheckpointStore, stored: StoredStep, advance: Advance = ignore) -> str | None:
    """Read all objects of a checkpoint. Return what is wrong with one of them; None if all are as they were stored.

    Args:
        store: the store.
        stored: the checkpoint.
        advance: told the bytes that were read.

    Raises:
        OSError: the store does not answer, or refuses.
    """
    try:
        _read_files(store, stored, None, advance)
    except Damaged as damage:
        return str(damage)
    return None


def _read_files(
    store: CheckpointStore, stored: StoredStep, target: Path | None, advance: Advance
) -> dict[str, list[str]]:
    """Read the files of a checkpoint, and compare them with the index.

    Args:
        store: the store.
        stored: the checkpoint.
        target: the directory that the files are written into; None: they are not written.
        advance: told the bytes that were received.

    Returns:
        The checksums of each file's blocks, by the name of the file.

    Raises:
        Damaged: an object is missing, or has another size or content.
        OSError: the store does not answer, or the directory cannot be written.
    """
    blocks = [
        _Block(name, file, begin, end)
        for name, file in stored.files.items()
        for begin, end in checksums.blocks(file.bytes)
    ]
    digests: dict[str, list[str]] = {name: [] for name in stored.files}
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(lambda block: _read_block(store, block, target, advance), blocks)
        for block, digest in zip(blocks, found, strict=True):
            digests[block.name] += digest
    for name, file in stored.files.items():
        if checksums.of_blocks(digests[name]) != file.digest:
            raise Damaged(f"{file.object} does not match its checksum")
    return digests


def _read_block(store: CheckpointStore, block: _Block, target: Path | None, advance: Advance) -> list[str]:
    """Read a block, and write it into a directory if there is one. Return its checksum. Raises Damaged, OSError."""
    digest = checksums.Running()
    end = block.begin
    with nullcontext() if target is None else _open_at(target / block.name, block.begin) as file:
        try:
            for piece in store.read_pieces(block.file.object, block.part):
                if file is not None:
                    file.write(piece)
                digest.update(piece)
                end += len(piece)
                advance(len(piece))
        except FileNotFoundError:
            raise Damaged(f"{block.file.object} is not in {store.where} any more") from None
    if end != block.end:
        raise Damaged(f"{block.file.object} has {end} bytes and not {block.file.bytes}")
    return digest.finish()


def _open_at(path: Path, begin: int) -> IO[bytes]:
    """Open a file for writing from a position on, and keep what others write to other parts of it. Raises OSError."""
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666), "wb")
    file.seek(begin)
    return file
