"""Keeps a rank alive that prints while the disk of its log is full: the output is lost, and the log says how much.

A rank's standard streams are files. On a full disk a write to them raises ENOSPC, wherever the script prints. The
bootstrap installs these streams when the hooks are imported.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from contextlib import suppress

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LossyFile(io.FileIO):
    """A descriptor for writing that drops output for which there is no room, and notes the loss once there is room."""

    def __init__(self, fd: int) -> None:
        """Write to `fd`, which stays open when this object is closed."""
        super().__init__(fd, "w", closefd=False)
        self._lost = 0
        self._why = ""

    def write(self, data: object) -> int:
        """Write the bytes, or drop them if there is no room.

        Returns:
            The number of bytes written; that of all bytes, if they were dropped.

        Raises:
            OSError: the write failed for another reason than a lack of room.
        """
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        try:
            if self._lost:
                note = f"\n[ftlaunch: {self._lost} bytes of output were lost: {self._why}]\n".encode()
                if super().write(note) == len(note):
                    self._lost = 0
            return super().write(view) or 0
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._lost += len(view)
            self._why = os.strerror(error.errno)
            return len(view)


def install() -> None:
    """Replace those standard streams that are files and that the script has not replaced."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper) and _is_log(stream.fileno()):
            lossy = _lossy(stream)
            setattr(sys, name, lossy)
            setattr(sys, f"__{name}__", lossy)


def _is_log(fd: int) -> bool:
    return fd in (1, 2) and stat.S_ISREG(os.fstat(fd).st_mode)


def _lossy(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    with suppress(OSError):
        stream.flush()
    raw = LossyFile(stream.fileno())
    raw.name = stream.name  # as Python names them: <stdout>
    unbuffered = isinstance(stream.buffer, io.RawIOBase)  # python -u
    lossy = io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    lossy.mode = stream.mode  # type: ignore[misc] # as Python does
    return lossy
