"""A tensor file of a snapshot slot, mapped for writing.

The file's memory is reserved, mapped page by page, and pinned where devices write to it by themselves. That may be done
in another thread before the file is needed (slot_preparation.py). Until then a new file has a temporary name.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ftlaunch_contract.checkpoint import tensor_file
from ftlaunch_contract.checkpoint.tensor_file import Chunk
from ftlaunch_contract.files import atomic
from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.devices.device_port import PinError, PinnedMap
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.tensors.mapped import tensor_over

_libc = ctypes.CDLL(None)
_POPULATE_READ = 22  # MADV_POPULATE_READ
TEMPORARY = ".tmp"
"""what is behind the name of a file that is not whole yet"""
_PIECE = 16 << 20  # bytes that are prepared at a time where somebody may stop that, and waits for one piece
_HEADER_ROOM = 4096  # bytes left in a header, besides as many as it has, for more tensors whose sizes change


class SlotFile:
    """A tensor file of a slot, mapped for writing once `take_place` has returned.

    Tensors whose sizes change lie at its end, behind a header with room for more. If only those change, the file and
    the memory of all others stay: making a file of 1 GiB anew costs a second of page faults.
    """

    def __init__(
        self,
        path: Path,
        chunks: Collection[Chunk],
        writer: torch.device | None = None,
        varying: Collection[str] = (),
        *,
        is_ahead: bool = False,
    ) -> None:
        """Take over the file at `path` if it is laid out for `chunks`, or begin to make it anew. Raises OSError.

        Args:
            path: the file.
            chunks: the tensors that the file is to hold.
            writer: a device that will write to the file; None for none. The file is pinned for it in its present
                layout; what `lay_out_tail` puts at its end is not pinned.
            varying: the names of chunks whose sizes change.
            is_ahead: whether another file at `path` is still in use. Then it stays until `take_place`; otherwise it is
                deleted at once, as there may be no room for both.
        """
        self.chunks: Mapping[str, Chunk] = {chunk.name: chunk for chunk in chunks}
        self.writer = writer
        self._fixed, tail = tensor_file.split_off_tail(chunks, varying)
        ordered = self._fixed + tail
        header, _ = tensor_file.build_header(ordered)
        if varying:
            header, _ = tensor_file.build_header(ordered, 2 * len(header) + _HEADER_ROOM)
        self._header_size = len(header)
        self._header, offsets = tensor_file.build_header(ordered, self._header_size)
        self._size = _size(self._header, offsets, ordered)
        self._path = path
        self._temporary = path.with_name(path.name + TEMPORARY)
        self._ready = 0  # bytes from the beginning on that are reserved and mapped
        self._pinned: PinnedMap | None = None
        self._needs_pin = writer is not None
        self.tensors: dict[str, Tensor] = {}
        self.fd = _adopt(path, self._header, self._size)
        self._is_named = self.fd >= 0
        """whether the file is at `path`, with all its memory reserved"""
        if not self._is_named:
            if not is_ahead:
                path.unlink(missing_ok=True)
            self.fd = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if not self._is_named:
                _check_room(self.fd, self._size)
                os.ftruncate(self.fd, self._size)
            self._mapped = mmap.mmap(self.fd, self._size, mmap.MAP_SHARED)
        except OSError:
            self.close()
            raise
        self.tensors = {
            chunk.name: tensor_over(self._mapped, chunk, at) for chunk, at in zip(ordered, offsets, strict=True)
        }

    @property
    def missing(self) -> int:
        """Return the bytes of memory that `prepare` has still to reserve."""
        return 0 if self._is_named else self._size - self._ready

    @property
    def is_prepared(self) -> bool:
        """Whether `prepare` has nothing left to do."""
        return self._ready == self._size

    def prepare(self, is_stopped: Callable[[], bool] | None = None) -> bool:
        """Reserve the file's memory, and take the page faults now, not at the first copy. What is in a file stays.

        Args:
            is_stopped: asked before each piece of 16 MiB; None: all is prepared at once, which is a little faster.

        Returns:
            Whether all is prepared; False if `is_stopped` has returned True. A later call then goes on from there.

        Raises:
            OSError: there is no room; the file is to be closed.
        """
        while self._ready < self._size:
            if is_stopped is not None and is_stopped():
                return False
            end = self._size if is_stopped is None else min(self._ready + _PIECE, self._size)
            if not self._is_named:
                os.posix_fallocate(self.fd, self._ready, end - self._ready)  # ENOSPC here instead of SIGBUS later
            _map_pages(torch.frombuffer(self._mapped, dtype=torch.uint8, offset=self._ready, count=end - self._ready))
            self._ready = end
        return True

    def pin(self) -> None:
        """Pin the memory for the device that writes to it, once; all of it is prepared."""
        if self._needs_pin and self.writer is not None:
            self._needs_pin = False
            held = min(self._size, os.fstat(self.fd).st_size)  # `lay_out_tail` may have made the file shorter
            self._pinned = _pin(self._mapped, held, self.writer)

    def pin_for(self, writer: torch.device | None) -> None:
        """Pin the memory of a file that has taken its place, where a device writes to it that did not before.

        What was pinned stays so: for all devices, and also where none writes to the file any more (`writer` is None).
        """
        if writer is not None and self.writer is None:
            self.writer = writer
            self._needs_pin = True
            self.pin()

    def take_place(self) -> None:
        """Do what is left to be prepared, and give the file its name, in place of any other file. Raises OSError."""
        self.prepare()
        self.pin()
        if not self._is_named:
            atomic.write_all(self.fd, self._header)
            self._temporary.rename(self._path)
            self._is_named = True

    def fits(self, chunks: Collection[Chunk]) -> bool:
        """Whether `lay_out_tail` can lay the file out for these chunks."""
        return self._find_tail(chunks) is not None

    def _find_tail(self, chunks: Collection[Chunk]) -> tuple[list[Chunk], bytes, Sequence[int]] | None:
        """Return all chunks in the order of a file whose beginning stays, its header and offsets; None: impossible."""
        known = {chunk.name: chunk for chunk in chunks}
        fixed = {chunk.name for chunk in self._fixed}
        if any(known.get(chunk.name) != chunk for chunk in self._fixed):
            return None
        behind = tensor_file.file_order(chunk for chunk in chunks if chunk.name not in fixed)
        ordered = self._fixed + behind
        header, offsets = tensor_file.build_header(ordered, self._header_size)
        if not tensor_file.lies_aligned_behind(self._fixed, behind) or len(header) != self._header_size:
            return None
        return ordered, header, offsets

    def lay_out_tail(self, chunks: Collection[Chunk]) -> bool:
        """Lay the file out for other chunks, if those at its beginning stay. Raises OSError.

        Returns:
            False if that is not possible. Then nothing has happened, and the file must be made anew.
        """
        found = self._find_tail(chunks)
        if found is None:
            return False
        ordered, header, offsets = found
        size = _size(header, offsets, ordered)
        before = os.fstat(self.fd).st_size
        if size > before:
            _check_room(self.fd, size - before)
            os.posix_fallocate(self.fd, before, size - before)
        elif size < before:
            os.ftruncate(self.fd, size)
        os.lseek(self.fd, 0, os.SEEK_SET)
        atomic.write_all(self.fd, header)
        self.chunks = {chunk.name: chunk for chunk in chunks}
        self.tensors = {chunk.name: self.tensors[chunk.name] for chunk in self._fixed}
        tail = list(zip(ordered, offsets, strict=True))[len(self._fixed) :]
        if tail:
            # A map begins at a page, and has at least one byte: in front of an empty tail there is the header.
            begin = (tail[0][1] - 1) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            mapped = mmap.mmap(self.fd, size - begin, mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=begin)
            self.tensors.update((chunk.name, tensor_over(mapped, chunk, at - begin)) for chunk, at in tail)
        return True

    def close(self) -> None:
        """Unmap the file, and delete it if it has not taken its place.

        An ordinary map lives as long as a tensor over it; a pinned one ends here.
        """
        if self._pinned is not None:
            self._pinned.close()
            self._pinned = None
        self.tensors = {}
        os.close(self.fd)
        if not self._is_named:
            self._temporary.unlink(missing_ok=True)


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


def _map_pages(memory: Tensor) -> None:
    """Take the page faults of a part of a map, which begins at a page. The GIL is released meanwhile."""
    if _libc.madvise(ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(memory.nbytes), _POPULATE_READ):
        memory[:: mmap.PAGESIZE].sum()  # before Linux 5.14: a byte of each page is read, which takes longer


def _check_room(fd: int, size: int) -> None:
    """Raise OSError (ENOSPC) where statvfs reports less than `size` bytes on the file's file system.

    Nothing is tried then: until it failed, the try would take memory that others need.
    """
    disk = os.fstatvfs(fd)
    if disk.f_blocks and size > disk.f_bavail * disk.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


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
