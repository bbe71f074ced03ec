"""What ended ranks have left in files: how their logs end, and the exceptions that torch's `@record` has written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ftlaunch.ranks.log_files import tail
from ftlaunch.system.file_thread import PATIENCE, FileThread
from ftlaunch_contract.files.regular_file import read_regular

_EACH = 0.001
"""seconds of patience more for each rank"""
_LONGEST_ERROR = 64 << 20  # bytes of an exception that `@record` has left
_LONGEST = 2.0
"""seconds of patience at most: agents wait for their head no longer"""


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
    """the last 64 KiB; empty where the log cannot be read"""
    error: Mapping[str, object] | None = None
    """what torch's `@record` has written"""


def read_leavings(files: FileThread, ranks: Mapping[int, Sought], *, must_read: bool) -> Mapping[int, Leavings]:
    """Return what each of these ranks has left.

    Args:
        files: touches the directory of the logs.
        ranks: by number.
        must_read: raise OSError where a log cannot be read, or its file system does not answer; else such a log counts
            as empty.
    """
    if not ranks:
        return {}
    try:
        return files.call(
            lambda: {number: _read(sought, must_read=must_read) for number, sought in ranks.items()},
            patience=min(PATIENCE + _EACH * len(ranks), _LONGEST),
        )
    except OSError:
        if must_read:
            raise
        return dict.fromkeys(ranks, Leavings())


def _read(sought: Sought, *, must_read: bool) -> Leavings:
    try:
        log_tail = tail(sought.log, sought.log_from)
    except OSError:
        if must_read:
            raise
        log_tail = ""
    return Leavings(log_tail, _read_json(sought.error_file))


def _read_json(path: Path) -> Mapping[str, object] | None:
    try:
        value = json.loads(read_regular(path, _LONGEST_ERROR))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
