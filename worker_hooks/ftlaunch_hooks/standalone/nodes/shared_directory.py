"""Checks that all nodes see the same checkpoint directory: one node writes a file, and each node looks for the file."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from ftlaunch_contract.pages.waiting import wait_until

_PATIENCE_SECONDS = 10.0  # a shared file system may take this long to show a new file


def leave_mark(directory: Path, number: int) -> None:
    """Write an empty file whose name contains `number`, which must be new. Raises OSError."""
    _mark(directory, number).touch(exist_ok=False)


def sees_mark(directory: Path, number: int) -> bool:
    """Return whether the file is there, or appears within ten seconds."""
    return wait_until(_mark(directory, number).exists, time.monotonic() + _PATIENCE_SECONDS)


def remove_mark(directory: Path, number: int) -> None:
    """Delete the file once all nodes have looked for it."""
    with suppress(OSError):
        _mark(directory, number).unlink()


def _mark(directory: Path, number: int) -> Path:
    return directory / f".shared-{number:016x}"
