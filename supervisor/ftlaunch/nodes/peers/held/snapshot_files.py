"""The files of one rank's snapshot: of a slot of its own node, or of a copy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ftlaunch.nodes.peers.plan.chunk_places import own_keys, own_runs
from ftlaunch.nodes.peers.plan.described_slot import DescribedSlot
from ftlaunch.nodes.peers.plan.tensor_layout import Layouts, TensorLayout
from ftlaunch_contract.checkpoint import layout, tensor_file


class SnapshotFiles:
    """The tensor files of a snapshot, open, and what is not a tensor."""

    def __init__(self, directory: Path, layouts: Layouts, *, writable: bool = False) -> None:
        """Open them. Raises OSError, or tensor_file.Damaged where a header is not one."""
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

    def close(self) -> None:
        """Close the files."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds = {}


def described(files: Mapping[int, SnapshotFiles]) -> list[DescribedSlot]:
    """The snapshots of a node's own ranks, by rank."""
    own = own_keys(one.layouts for one in files.values())
    return [
        DescribedSlot(
            rank, one.layouts, one.common, {group: own_runs(found, own) for group, found in one.layouts.items()}
        )
        for rank, one in files.items()
    ]


def create_file(path: Path, header: bytes, size: int) -> int:
    """A new tensor file with its header, all else of it holes; its descriptor. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size)
        os.posix_fallocate(fd, 0, len(header))
        os.pwrite(fd, header, 0)
    except OSError:
        os.close(fd)
        raise
    return fd
