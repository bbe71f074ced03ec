"""Reads what ended ranks have left in files: the ends of their logs, and the exceptions that torch's `@record` wrote.

The supervisor, or an agent, calls `read_leavings` in its event loop; the file thread does the reading.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ftlaunch.ranks.log_files import tail
from ftlaunch.system.file_thread import PATIENCE_SECONDS, FileThread
from ftlaunch_contract.files.regular_file import read_regular

_PATIENCE_PER_RANK_SECONDS = 0.001
"""seconds of additional patience for each rank"""
_LONGEST_ERROR = 64 << 20  # bytes of an exception that `@record` has written
_MOST_PATIENCE_SECONDS = 2.0
"""seconds of patience at most, because agents do not wait longer for their head"""


@dataclass(frozen=True)
class Sought:
    """The files of one rank."""

    log: Path
    log_from: int
    """where in the log this attempt begins, in bytes"""
    error_file: Path


@dataclass(frozen=True)
class Leavings:
    """What one rank has left."""

    log_tail: str = ""
    """the last 64 KiB of the log; empty if the log cannot be read"""
    error: Mapping[str, object] | None = None
    """the exception as torch's `@record` has written it; None if there is none"""


def read_leavings(files: FileThread, ranks: Mapping[int, Sought], *, must_read: bool) -> Mapping[int, Leavings]:
    """Return what each of the ranks has left.

    Args:
        files: thread that reads the directory of the logs.
        ranks: the files by rank.
        must_read: raise if a log cannot be read; otherwise such a log counts as empty.

    Raises:
        OSError: `must_read` is set, and a log cannot be read or its file system does not answer.
    """
    if not ranks:
        return {}
    try:
        return files.call(
            lambda: {number: _read(sought, must_read=must_read) for number, sought in ranks.items()},
            patience=min(PATIENCE_SECONDS + _PATIENCE_PER_RANK_SECONDS * len(ranks), _MOST_PATIENCE_SECONDS),
        )
    except OSError:
        if must_read:
            raise
        return dict.fromkeys(ranks, Leavings())


def _read(sought: Sought, *, must_read: bool) -> Leavings:
    """Read the files of one rank. Runs in the file thread."""
    try:
        log_tail = tail(sought.log, sought.log_from)
    except OSError:
        if must_read:
            raise
        log_tail = ""
    return Leavings(log_tail, _read_json(sought.error_file))


def _read_json(path: Path) -> Mapping[str, object] | None:
    """Return the JSON object in a file; None if there is none, or the file is too long or cannot be read."""
    try:
        value = json.loads(read_regular(path, _LONGEST_ERROR))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
