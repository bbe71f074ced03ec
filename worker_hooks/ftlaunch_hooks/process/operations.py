"""Logs operations on checkpoints in a rank without a supervisor: in the rank's log, and in a file of the script's.

A supervisor has its journal for that, and writes the file itself (operation_log.py). One process is one rank, so the
file and the waiting lines are module variables.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from ftlaunch_contract.checkpoint import operation_log
from ftlaunch_hooks.process.say import say

_waiting = deque[str](maxlen=1000)  # lines from before the script names a file; bounded, as most scripts name none
_path: Path | None = None


def log_operation(sentence: str) -> None:
    """Log what was done to a checkpoint, and append the sentence to the file that the script has named, if any."""
    say(sentence)
    _waiting.append(operation_log.stamped(sentence))
    _write()


def name_file(path: Path | None) -> None:
    """Append the operations of this process to `path` from now on, those so far included; None: to no file."""
    global _path  # noqa: PLW0603 - see above
    _path = path
    _write()


def _write() -> None:
    global _path  # noqa: PLW0603 - see above
    if _path is None or not _waiting:
        return
    try:
        operation_log.append(_path, _waiting)
    except OSError as error:
        say(f"cannot write {_path}, which the script has named for saves: {error.strerror}")
        _path = None
    _waiting.clear()
