"""Sends files to a checkpoint store, several at a time."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ftlaunch.checkpoints.stores.store import SMALL_FILE, CheckpointStore, Spent

# Providers limit the speed of each connection: it takes several to fill a link. What large files hold in memory stands
# in bucket.py, and is more than what small ones do.
_SMALL_FILES = 16  # that are sent at the same time, each in one request
_LARGE_FILES = 4  # each in several requests at a time


def send_files(store: CheckpointStore, paths: Iterable[Path], folder: str, spent: Spent) -> None:
    """Upload files into a folder of the store, under their own names.

    Args:
        store: the place.
        paths: the files.
        folder: the beginning of the objects' names, without the last `/`.
        spent: called with the bytes of each piece that is sent.

    Raises:
        OSError: the store does not answer, or refuses; FileNotFoundError if one of the files is not there.
    """

    def upload(path: Path) -> None:
        store.upload(path, f"{folder}/{path.name}", spent)

    small: list[Path] = []
    large: list[Path] = []
    for path in paths:
        (small if path.stat().st_size <= SMALL_FILE else large).append(path)
    for files, threads in ((small, _SMALL_FILES), (large, _LARGE_FILES)):
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(upload, files))
