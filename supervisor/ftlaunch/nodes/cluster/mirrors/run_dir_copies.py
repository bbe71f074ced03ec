"""Sends what the head keeps in its run dir to the nodes that do not share it.

Each of them has a copy of the journal, so that `ftctl` works there, and of the small files (`WHOLE_FILES`) that a head
on that node would go on from: the plan of the attempt, learned limits, failures by machine, the job's seed. The copies
follow within a second; the plan is sent at once. A node says what it has of the journal when it comes; if that is a
beginning of the journal, only the rest is sent. Runs in the head's event loop.
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

from ftlaunch.health.limits_file import LIMITS
from ftlaunch.history.journal import EVENTS
from ftlaunch.history.recovery_view import RECOVERY
from ftlaunch.nodes.cluster.membership import isolated_machines, plan
from ftlaunch.system.file_thread import FileThread
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.files.regular_file import file_size, open_regular, read_regular

WHOLE = -1
"""`offset` of a message whose data is all of a file"""
WHOLE_FILES = (plan.NAME, layout.SEED, LIMITS, isolated_machines.NAME, RECOVERY)
"""names of the small files that are copied as a whole, in the run dir"""
_MOST_OF_A_FILE = 2 << 20  # bytes; a longer file is not copied
_PIECE_BYTES = 256 << 10
_PERIOD_SECONDS = 0.5  # between two looks at whether files have changed


class CopyHolder(Protocol):
    """A node that has copies."""

    journal_sent: int
    """the bytes of the journal that the node has, or was sent"""
    files_sent: dict[str, bytes]
    """the content of each small file as it was sent to the node, by name"""

    def send(self, do: str, **fields: object) -> None:
        """Send a message of `messages.DOWN`."""


class RunDirCopies:
    """The copies of one run dir."""

    def __init__(self, run_dir: Path, files: FileThread, clock: Callable[[], float]) -> None:
        """Send nothing yet.

        Args:
            run_dir: the head's run dir.
            files: the thread in which its files are written.
            clock: monotonic seconds.
        """
        self._run_dir = run_dir
        self._files = files
        self._clock = clock
        self._sent_at = -inf

    def begin(self, node: CopyHolder, size: int, digest: str) -> None:
        """Find out how much of the journal a node has.

        Args:
            node: the node, which has just come.
            size: the bytes of a journal that it has.
            digest: their SHA-256.
        """
        node.journal_sent = 0
        node.files_sent = {}
        with contextlib.suppress(OSError):
            if size and self._files.call(lambda: self._digest(size)) == digest:
                node.journal_sent = size

    def _digest(self, size: int) -> str:
        """Return the SHA-256 of the first bytes of the journal. Raises OSError."""
        with open_regular(self._run_dir / EVENTS) as file:
            return hashlib.sha256(file.read(size)).hexdigest()

    def send(self, nodes: Iterable[CopyHolder]) -> None:
        """Send each of `nodes` the next piece of the journal, and files that have changed, if it is time."""
        now = self._clock()
        copies = list(nodes)
        if not copies or now < self._sent_at + _PERIOD_SECONDS:
            return
        self._sent_at = now
        with contextlib.suppress(OSError):  # a file system that is silent answers later
            size, small_files = self._files.call(self._read_changing)
            for node in copies:
                self._send_piece(node, size)
                for name, content in small_files.items():
                    self.send_file(node, name, content)

    def send_rest(self, nodes: Iterable[CopyHolder]) -> None:
        """Send each of `nodes` all of the journal that it lacks, as far as the file system answers soon."""
        copies = list(nodes)
        with contextlib.suppress(OSError):
            size = self._files.call(lambda: file_size(self._run_dir / EVENTS)) if copies else 0
            for node in copies:
                while node.journal_sent < size:
                    self._send_piece(node, size)

    @staticmethod
    def send_file(node: CopyHolder, name: str, content: bytes) -> None:
        """Send a node all of a small file, unless the node has the same content.

        Args:
            node: the node.
            name: one of WHOLE_FILES.
            content: the bytes of the file.
        """
        if node.files_sent.get(name) != content:
            node.files_sent[name] = content
            node.send("copy", name=name, offset=WHOLE, data=base64.b64encode(content).decode())

    def _read_changing(self) -> tuple[int, dict[str, bytes]]:
        """Return the bytes of the journal, and the content of each small file that there is, and is not too long.

        Raises:
            OSError: the file system fails.
        """
        found = {}
        for name in WHOLE_FILES:
            try:
                found[name] = read_regular(self._run_dir / name, _MOST_OF_A_FILE)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EFBIG):
                    raise
        return file_size(self._run_dir / EVENTS), found

    def _send_piece(self, node: CopyHolder, size: int) -> None:
        """Send a node the next piece of a journal of `size` bytes, if it lacks any. Raises OSError."""
        offset = node.journal_sent
        if offset < size:
            piece = self._files.call(lambda: self._read(offset, min(_PIECE_BYTES, size - offset)))
            node.send("copy", name=EVENTS, offset=offset, data=base64.b64encode(piece).decode())
            node.journal_sent += len(piece)

    def _read(self, offset: int, count: int) -> bytes:
        """Return bytes of the journal. Raises OSError, also if it has become shorter."""
        path = self._run_dir / EVENTS
        with open_regular(path) as file:
            file.seek(offset, os.SEEK_SET)
            piece = file.read(count)
        if len(piece) < count:
            raise OSError(errno.EIO, "the journal has become shorter", str(path))
        return piece
