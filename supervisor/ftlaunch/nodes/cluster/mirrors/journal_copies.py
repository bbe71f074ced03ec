"""Sends the job's journal to the nodes that do not share the head's run dir, so that `ftctl` works on them, too.

Each of them has a copy that follows the journal within a second. A node says what it has of the journal when it comes;
if that is a beginning of the journal, only the rest is sent. Runs in the head's event loop.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Protocol

from ftlaunch.system.file_thread import FileThread
from ftlaunch_contract.files.regular_file import file_size, open_regular

_PIECE_BYTES = 256 << 10
_PERIOD_SECONDS = 0.5  # between two looks at whether the journal has grown


class Copy(Protocol):
    """A node that has a copy of the journal."""

    journal_sent: int
    """the bytes of the journal that the node has, or was sent"""

    def send(self, do: str, **fields: object) -> None:
        """Send a message of `messages.DOWN`."""


class JournalCopies:
    """The copies of one journal."""

    def __init__(self, journal: Path, files: FileThread, clock: Callable[[], float]) -> None:
        """Send nothing yet.

        Args:
            journal: events.jsonl.
            files: the thread in which the journal is written.
            clock: monotonic seconds.
        """
        self._journal = journal
        self._files = files
        self._clock = clock
        self._sent_at = -inf

    def begin(self, node: Copy, size: int, digest: str) -> None:
        """Find out how much of the journal a node has.

        Args:
            node: the node, which has just come.
            size: the bytes of a journal that it has.
            digest: their SHA-256.
        """
        node.journal_sent = 0
        with contextlib.suppress(OSError):
            if size and self._files.call(lambda: self._digest(size)) == digest:
                node.journal_sent = size

    def _digest(self, size: int) -> str:
        """Return the SHA-256 of the first bytes of the journal. Raises OSError."""
        with open_regular(self._journal) as file:
            return hashlib.sha256(file.read(size)).hexdigest()

    def send(self, nodes: Iterable[Copy]) -> None:
        """Send each of `nodes` the next piece that it lacks, if it is time."""
        now = self._clock()
        copies = list(nodes)
        if not copies or now < self._sent_at + _PERIOD_SECONDS:
            return
        self._sent_at = now
        with contextlib.suppress(OSError):  # a file system that is silent answers later
            size = self._files.call(lambda: file_size(self._journal))
            for node in copies:
                self._send_piece(node, size)

    def send_rest(self, nodes: Iterable[Copy]) -> None:
        """Send each of `nodes` all that it lacks, as far as the file system answers soon."""
        copies = list(nodes)
        with contextlib.suppress(OSError):
            size = self._files.call(lambda: file_size(self._journal)) if copies else 0
            for node in copies:
                while node.journal_sent < size:
                    self._send_piece(node, size)

    def _send_piece(self, node: Copy, size: int) -> None:
        """Send a node the next piece of a journal of `size` bytes, if it lacks any. Raises OSError."""
        offset = node.journal_sent
        if offset < size:
            piece = self._files.call(lambda: self._read(offset, min(_PIECE_BYTES, size - offset)))
            node.send("journal", offset=offset, data=base64.b64encode(piece).decode())
            node.journal_sent += len(piece)

    def _read(self, offset: int, count: int) -> bytes:
        """Return bytes of the journal. Raises OSError, also if it has become shorter."""
        with open_regular(self._journal) as file:
            file.seek(offset, os.SEEK_SET)
            piece = file.read(count)
        if len(piece) < count:
            raise OSError(errno.EIO, "the journal has become shorter", str(self._journal))
        return piece
