"""What a process without a supervisor does to checkpoints: a line in the rank's log, and in a file of the script's.

A supervisor has its journal for that, and writes the file itself (operation_log.py). One process is one rank, so what
is kept here is the process's.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from ftlaunch_contract.checkpoint import operation_log
from ftlaunch_hooks.process.say import say

_waiting = deque[str](maxlen=1000)  # lines from before the script has named a file, and most scripts name none
_path: Path | None = None


def tell_operation(sentence: str) -> None:
    """Say what was done to a checkpoint, and append it to the script's file where it has named one."""
    say(sentence)
    _waiting.append(operation_log.stamped(sentence))
    _write()


def name_file(path: Path | None) -> None:
    """Have the operations of this process appended to a file, those so far included; None: to none."""
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
