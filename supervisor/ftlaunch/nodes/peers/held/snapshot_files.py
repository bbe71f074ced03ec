"""The files of one rank's snapshot, in a slot of its own node or in a copy."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import xxhash

from ftlaunch.nodes.peers.plan.chunk_places import Runs, indexes, own_keys, own_runs
from ftlaunch.nodes.peers.plan.described_slot import SAMPLE_BYTES, DescribedSlot
from ftlaunch.nodes.peers.plan.tensor_layout import Layouts, TensorLayout
from ftlaunch_contract.checkpoint import layout, tensor_file

_SAMPLES = 16  # words of a chunk that are sampled, at equal distances; a smaller chunk is read whole
_WORD = 8  # bytes of each


class SnapshotFiles:
    """The open tensor files of a snapshot, and the content of common.json."""

    def __init__(self, directory: Path, layouts: Layouts, *, writable: bool = False) -> None:
        """Open the files in a directory.

        Raises:
            OSError: a file cannot be opened.
            tensor_file.Damaged: a header is malformed, or a file has a wrong size.
        """
        self.directory = directory
        self.fds: dict[str, int] = {}
        self.layouts: dict[str, TensorLayout] = {}
        try:
            for group in layout.GROUPS:
                mode = os.O_RDWR if writable else os.O_RDONLY
                fd = os.open(layout.slot_file(directory, group), mode | os.O_CLOEXEC)
                self.fds[group] = fd
                self.layouts[group] = found = layouts.of(tensor_file.header_bytes(fd))
                if os.fstat(fd).st_size != found.size:
                    raise tensor_file.Damaged(f"the {group} file of {directory.name} has another size than it says")
            self.common = (directory / layout.COMMON).read_bytes()
        except BaseException:
            self.close()
            raise

    def samples(self, group: str, own: Runs) -> list[bytes]:
        """Return a digest of a sample of each chunk's present values; zeros for the chunks in `own`. Raises OSError."""
        found = self.layouts[group]
        left_out = indexes(own)
        fd = self.fds[group]
        return [
            bytes(SAMPLE_BYTES) if number in left_out else _sample(fd, begin, chunk.nbytes)
            for number, (chunk, begin) in enumerate(zip(found.chunks, found.begins, strict=True))
        ]

    def close(self) -> None:
        """Close the files."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds = {}


def describe(files: Mapping[int, SnapshotFiles]) -> list[DescribedSlot]:
    """Describe the snapshots of a node's own ranks. files: the open files by rank."""
    keys = own_keys(snapshot.layouts for snapshot in files.values())
    return [_describe(rank, snapshot, keys) for rank, snapshot in files.items()]


def _describe(rank: int, files: SnapshotFiles, own_keys_of_node: Collection[str]) -> DescribedSlot:
    own = {group: own_runs(found, own_keys_of_node) for group, found in files.layouts.items()}
    return DescribedSlot(
        rank=rank,
        layouts=files.layouts,
        common=files.common,
        own=own,
        samples={group: files.samples(group, own[group]) for group in files.layouts},
    )


def _sample(fd: int, begin: int, size: int) -> bytes:
    if size <= _SAMPLES * _WORD:
        return xxhash.xxh3_64_digest(os.pread(fd, size, begin))
    distance = size // _SAMPLES // _WORD | 1  # words; odd, because a row often has a power of two values
    found = xxhash.xxh3_64()
    for at in range(begin, begin + size, distance * _WORD):
        found.update(os.pread(fd, min(_WORD, begin + size - at), at))
    return found.digest()


def create_file(path: Path, header: bytes, size: int) -> int:
    """Create a tensor file of `size` bytes with a header and holes. Return its descriptor. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size)
        os.posix_fallocate(fd, 0, len(header))
        os.pwrite(fd, header, 0)
    except OSError:
        os.close(fd)
        raise
    return fd
