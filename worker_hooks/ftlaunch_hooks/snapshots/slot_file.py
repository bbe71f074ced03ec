"""A tensor file of a snapshot slot, mapped for writing.

The file's memory is reserved before it is mapped, and pinned where devices write to it by themselves.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from ftlaunch_contract.checkpoint import tensor_file
from ftlaunch_contract.checkpoint.tensor_file import Chunk
from ftlaunch_contract.files import atomic
from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.devices.device_port import PinError, PinnedMap
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.tensors.mapped import tensor_over

_HEADER_ROOM = 4096  # bytes left in a header, besides as many as it has, for more tensors whose sizes change


class SlotFile:
    """A tensor file of a slot, mapped for writing.

    Tensors whose sizes change lie at its end, behind a header with room for more. If only those change, the file and
    the memory of all others stay: making a file of 1 GiB anew costs a second of page faults.
    """

    def __init__(
        self, path: Path, chunks: Collection[Chunk], writer: torch.device | None = None, varying: Collection[str] = ()
    ) -> None:
        """Take over the file at `path` if it is laid out for `chunks`, or make it anew. Raises OSError.

        Args:
            path: the file.
            chunks: the tensors that the file is to hold.
            writer: a device that will write to the file; None for none. The file is pinned for it in its present
                layout; what `lay_out_tail` puts at its end is not pinned.
            varying: the names of chunks whose sizes change.
        """
        self._fixed, tail = tensor_file.split_off_tail(chunks, varying)
        ordered = self._fixed + tail
        header, _ = tensor_file.build_header(ordered)
        if varying:
            header, _ = tensor_file.build_header(ordered, 2 * len(header) + _HEADER_ROOM)
        self._header_size = len(header)
        header, offsets = tensor_file.build_header(ordered, self._header_size)
        size = _size(header, offsets, ordered)
        self.fd = _adopt(path, header, size)
        if self.fd < 0:
            self.fd = _create(path, header, size)
        # MAP_POPULATE takes the page faults now, not at the first copy
        mapped = mmap.mmap(self.fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._pinned = None if writer is None else _pin(mapped, size, writer)
        self.tensors = {chunk.name: tensor_over(mapped, chunk, at) for chunk, at in zip(ordered, offsets, strict=True)}

    def lay_out_tail(self, chunks: Collection[Chunk]) -> bool:
        """Lay the file out for other chunks, if those at its beginning stay. Raises OSError.

        Returns:
            False if that is not possible. Then nothing has happened, and the file must be made anew.
        """
        known = {chunk.name: chunk for chunk in chunks}
        fixed = {chunk.name for chunk in self._fixed}
        if any(known.get(chunk.name) != chunk for chunk in self._fixed):
            return False
        behind = tensor_file.file_order(chunk for chunk in chunks if chunk.name not in fixed)
        ordered = self._fixed + behind
        header, offsets = tensor_file.build_header(ordered, self._header_size)
        if not tensor_file.lies_aligned_behind(self._fixed, behind) or len(header) != self._header_size:
            return False
        size = _size(header, offsets, ordered)
        before = os.fstat(self.fd).st_size
        if size > before:
            _reserve(self.fd, size - before, before)
        elif size < before:
            os.ftruncate(self.fd, size)
        os.lseek(self.fd, 0, os.SEEK_SET)
        atomic.write_all(self.fd, header)
        self.tensors = {name: self.tensors[name] for name in fixed}
        tail = list(zip(ordered, offsets, strict=True))[len(self._fixed) :]
        if tail:
            # A map begins at a page, and has at least one byte: in front of an empty tail there is the header.
            begin = (tail[0][1] - 1) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            mapped = mmap.mmap(self.fd, size - begin, mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=begin)
            self.tensors.update((chunk.name, tensor_over(mapped, chunk, at - begin)) for chunk, at in tail)
        return True

    def close(self) -> None:
        """Unmap the file. An ordinary map lives as long as a tensor over it; a pinned one ends here."""
        if self._pinned is not None:
            self._pinned.close()
            self._pinned = None
        self.tensors = {}
        os.close(self.fd)


def _size(header: bytes, offsets: Sequence[int], chunks: Sequence[Chunk]) -> int:
    return offsets[-1] + chunks[-1].nbytes if chunks else len(header)


def _adopt(path: Path, header: bytes, size: int) -> int:
    """Return a descriptor of the file that an earlier attempt has left, if its layout is the same; else -1."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    if os.fstat(fd).st_size == size and os.pread(fd, len(header), 0) == header:
        return fd
    os.close(fd)
    return -1


def _create(path: Path, header: bytes, size: int) -> int:
    """Make the file anew, and return its descriptor. It gets its name once all its memory is reserved."""
    path.unlink(missing_ok=True)  # first: there may be no room for the old file and the new one
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _reserve(fd, size)
        atomic.write_all(fd, header)
        temporary.rename(path)
    except OSError:
        os.close(fd)
        temporary.unlink(missing_ok=True)
        raise
    return fd


def _reserve(fd: int, size: int, begin: int = 0) -> None:
    """Reserve `size` bytes of the file's memory from `begin` on: ENOSPC here instead of SIGBUS later.

    Where statvfs reports too little, nothing is tried: until it failed, the try would take memory that others need.
    """
    disk = os.fstatvfs(fd)
    if disk.f_blocks and size > disk.f_bavail * disk.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.posix_fallocate(fd, begin, size)


_refused = False


def _pin(mapped: mmap.mmap, size: int, device: torch.device) -> PinnedMap | None:
    """Pin a map. Returns None where that is refused; then copies go through memory of the driver's own.

    A refusal is reported once.
    """
    global _refused  # noqa: PLW0603 - one process is one rank
    try:
        return device_port.pin(mapped, size, device)
    except PinError as error:
        if not _refused:
            _refused = True
            say(f"cannot pin the memory of snapshots: {error}; copies from devices are slower, and hold up the step")
        return None
