"""Reads what is added to the file to which a rank writes its stacks when it receives STACKS_SIGNAL.

The caller notes the size, sends the signal, and then waits for what is added; so this runs outside an event loop.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from ftlaunch_contract.files.regular_file import file_size

_PATIENCE = 0.6  # seconds for a process to write its stacks
_QUIET = 0.05  # seconds without growth after which the stacks are complete
_POLL = 0.005  # seconds


def added(path: Path, begin: int) -> str:
    """Wait for text after the first `begin` bytes of a file, and return the text once the file stops growing.

    Returns:
        The text; empty if nothing was added within 0.6 s.
    """
    changed = time.monotonic()
    until = changed + _PATIENCE
    end = begin
    while (now := time.monotonic()) < until and (end == begin or now - changed < _QUIET):
        time.sleep(_POLL)
        if (new_end := file_size(path)) != end:
            end = new_end
            changed = time.monotonic()
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(begin)
        return file.read(end - begin).decode(errors="replace")
    return ""
