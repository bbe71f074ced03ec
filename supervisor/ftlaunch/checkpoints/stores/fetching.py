"""Reads the files of a stored checkpoint: into a directory, or only to compare them with their checksums."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ftlaunch.checkpoints.stores.index import StoredFile, StoredStep
from ftlaunch.checkpoints.stores.store import CheckpointStore
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.files import checksums
from ftlaunch_contract.progress import Advance, ignore

_THREADS = 4  # objects that are read at the same time


def fetch_files(store: CheckpointStore, stored: StoredStep, target: Path, advance: Advance = ignore) -> None:
    """Write the files of a checkpoint into a directory. The caller verifies the files by metadata.json.

    Args:
        store: the store.
        stored: the checkpoint.
        target: the directory.
        advance: told the bytes that were received.

    Raises:
        Damaged: an object is missing, has another size, or is not the metadata.json that was stored.
        OSError: the store does not answer, or the directory cannot be written.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda name: _fetch(store, stored.files[name], target / name, advance), stored.files))


def _fetch(store: CheckpointStore, file: StoredFile, path: Path, advance: Advance) -> None:
    try:
        store.download(file.object, path, advance)
    except FileNotFoundError:
        raise Damaged(_missing(store, file)) from None
    size = path.stat().st_size
    if size != file.bytes:
        raise Damaged(_other_size(file, size))
    # metadata.json has the checksums of all other files, and a whole step that lies there must not pass for this one.
    if path.name == layout.METADATA and checksums.of_blocks(checksums.of_bytes(path.read_bytes())) != file.digest:
        raise Damaged(_other_content(file))


def find_damage(store: CheckpointStore, stored: StoredStep, advance: Advance = ignore) -> str | None:
    """Read all objects of a checkpoint. Return what is wrong with one of them; None if all are as they were stored.

    Args:
        store: the store.
        stored: the checkpoint.
        advance: told the bytes that were read.

    Raises:
        OSError: the store does not answer, or refuses.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        problems = pool.map(lambda file: _find_damage(store, file, advance), stored.files.values())
        return next(filter(None, problems), None)


def _find_damage(store: CheckpointStore, file: StoredFile, advance: Advance) -> str | None:
    digests = checksums.Running()
    size = 0
    try:
        for piece in store.read_pieces(file.object):
            digests.update(piece)
            size += len(piece)
            advance(len(piece))
    except FileNotFoundError:
        return _missing(store, file)
    if size != file.bytes:
        return _other_size(file, size)
    return None if checksums.of_blocks(digests.finish()) == file.digest else _other_content(file)


def _missing(store: CheckpointStore, file: StoredFile) -> str:
    return f"{file.object} is not in {store.where} any more"


def _other_size(file: StoredFile, size: int) -> str:
    return f"{file.object} has {size} bytes and not {file.bytes}"


def _other_content(file: StoredFile) -> str:
    return f"{file.object} does not match its checksum"
