"""Keeps, at the head, what nodes with run dirs of their own send of their files, where the engine looks for files.

A log is kept as a file of the same length, of which only the end has content; the rest is a hole, as in logs that are
kept short. Runs in the head's event loop; files are written in the file thread, in which the engine then reads them.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ftlaunch.autopsy import client as autopsy
from ftlaunch.ranks.environment import error_file
from ftlaunch.ranks.log_files import log_path
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.file_thread import FileThreads


class NodeFiles:
    """The files of all nodes that share no run dir with the head."""

    def __init__(self, spec: JobSpec, files: FileThreads, say: Callable[[str], None]) -> None:
        """Keep nothing yet.

        Args:
            spec: the job.
            files: the threads that touch the run dir and the logs.
            say: writes a sentence to the head's terminal.
        """
        self._spec = spec
        self._files = files
        self._say = say
        self._complained = False

    def keep(self, message: Mapping[str, Any], ranks: range) -> None:
        """Write a file of a node, or a part of it.

        Args:
            message: the message `file`.
            ranks: the ranks of the node's place.

        Raises:
            ValueError: the message names no file that the node may send.
        """
        kind = message["kind"]
        rank = message["rank"]
        offset = message["offset"]
        spec = self._spec
        try:
            content = base64.b64decode(message["data"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"a file that cannot be decoded: {error}") from None
        if kind == "autopsy":
            path = self._autopsy_path(message["name"])
        elif kind not in ("log", "error") or rank not in ranks or message["attempt"] < 0 or offset < 0:
            raise ValueError(f"a file of kind {kind!r} and rank {rank}")
        elif kind == "log":
            path = log_path(spec.log_dir, message["attempt"], rank)
        else:
            path = error_file(spec, message["attempt"], rank)
        place = spec.run_dir if kind == "autopsy" else spec.log_dir
        self._files.of(place).write(lambda: _write(path, offset, content), self._cannot_keep, size=len(content))

    def _autopsy_path(self, name: str) -> Path:
        """Return where a file of an autopsy belongs. Raises ValueError if no autopsy has such a file."""
        folder, _, file = name.partition("/")
        if not autopsy.is_name(folder, file):
            raise ValueError(f"a file of an autopsy called {name!r}")
        return self._spec.run_dir / "autopsy" / folder / file

    def _cannot_keep(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            self._say(f"cannot keep what the nodes send of their files: {error.filename}: {error.strerror}")


def _write(path: Path, offset: int, content: bytes) -> None:
    """Write a part of a file, which gets the length that it has on its node. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "r+b") as file:
        if not content:
            file.truncate(max(offset, file.seek(0, os.SEEK_END)))
        file.seek(offset)
        file.write(content)
