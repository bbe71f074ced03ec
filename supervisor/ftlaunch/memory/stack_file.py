"""Reads what is added to the file to which a rank writes its stacks when it receives STACKS_SIGNAL.

The caller notes the size, sends the signal, and then waits for what is added; so this runs outside an event loop.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from ftlaunch_contract.files.regular_file import file_size

_PATIENCE_SECONDS = 0.6  # for a process to write its stacks
_QUIET_SECONDS = 0.05  # without growth, after which the stacks are complete
_POLL_SECONDS = 0.005


def added(path: Path, begin: int) -> str:
    """Wait for text after the first `begin` bytes of a file, and return the text once the file stops growing.

    Returns:
        The text; empty if nothing was added within 0.6 s.
    """
    changed = time.monotonic()
    until = changed + _PATIENCE_SECONDS
    end = begin
    while (now := time.monotonic()) < until and (end == begin or now - changed < _QUIET_SECONDS):
        time.sleep(_POLL_SECONDS)
        if (new_end := file_size(path)) != end:
            end = new_end
            changed = time.monotonic()
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(begin)
        return file.read(end - begin).decode(errors="replace")
    return ""
