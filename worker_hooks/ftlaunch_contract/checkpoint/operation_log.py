"""The text file in which a script wants the saves and deletions of its run: one line each, with the date. No torch.

Under a supervisor the script leaves the file's path in the run dir, and the supervisor writes the lines beside its
journal. Without one the process that saves writes them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.regular_file import read_regular

NOTE = "operation_log.json"
"""the file in a run dir that holds the path which the script has named"""


def stamped(sentence: str) -> str:
    """Return the line of an operation that was done just now."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {sentence}\n"


def append(path: Path, lines: Iterable[str]) -> None:
    """Append whole lines to the file, which is made where it is missing. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    try:
        atomic.write_all(fd, "".join(lines).encode())
    finally:
        os.close(fd)


def leave_path(run_dir: Path, path: Path | None) -> None:
    """Tell the supervisor which file the script has named; None withdraws an earlier name. Raises OSError."""
    if path is None:
        (run_dir / NOTE).unlink(missing_ok=True)
    else:
        atomic.replace_durable(run_dir / NOTE, json.dumps({"path": str(path)}).encode())


def read_path(run_dir: Path) -> Path | None:
    """Return the path that `leave_path` has left, or None. Raises OSError where the note cannot be read."""
    try:
        found = json.loads(read_regular(run_dir / NOTE))
    except (FileNotFoundError, ValueError):
        return None
    path = found.get("path") if isinstance(found, dict) else None
    return Path(path) if isinstance(path, str) else None
