"""Whether all nodes see one checkpoint directory: one writes a file into it, and each of the others looks for it."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from ftlaunch_contract.pages.waiting import wait_until

_PATIENCE = 10.0  # seconds that a shared file system may take to show a new file


def leave_mark(directory: Path, number: int) -> None:
    """Write a file that nobody has looked for before. Raises OSError."""
    _mark(directory, number).touch(exist_ok=False)


def sees_mark(directory: Path, number: int) -> bool:
    """Whether the file is there, or comes in time."""
    return wait_until(_mark(directory, number).exists, time.monotonic() + _PATIENCE)


def remove_mark(directory: Path, number: int) -> None:
    """All have looked."""
    with suppress(OSError):
        _mark(directory, number).unlink()


def _mark(directory: Path, number: int) -> Path:
    return directory / f".shared-{number:016x}"
