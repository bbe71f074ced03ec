"""Measures how fast a folder takes data, and whether there are locks: answers with JSON.

    python -m ftlaunch.tools.preflight.disk FOLDER [FOLDER TO BE LOCKED]...

It is a process of its own, because a file system that does not answer can hold it for ever.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftlaunch.common.formatting import duration
from ftlaunch.system.helper_process import PIPE, HelperProcesses
from ftlaunch.system.own_modules import module
from ftlaunch_contract.files import atomic

_BLOCK, _BLOCKS = 1 << 20, 32
_ENOUGH = 5.0  # seconds after which no further block is written
_SYNCS = 5


def measure(folder: Path) -> dict[str, Any]:
    """Bytes and seconds of a write with its fsync, and seconds of the median small fsync. Raises OSError."""
    block = os.urandom(_BLOCK)  # a file system that compresses gains nothing
    # The file has no name from here on: whatever kills us, nothing is left on the disk.
    with tempfile.TemporaryFile(dir=folder, prefix=".ftlaunch-check-", buffering=0) as file:
        began, written = time.monotonic(), 0
        while written < _BLOCK * _BLOCKS and time.monotonic() - began < _ENOUGH:
            atomic.write_all(file.fileno(), block)
            written += _BLOCK
        os.fsync(file.fileno())
        seconds = time.monotonic() - began
        syncs = []
        for _ in range(_SYNCS):
            atomic.write_all(file.fileno(), block[:4096])
            at = time.monotonic()
            os.fsync(file.fileno())
            syncs.append(time.monotonic() - at)
    return {"error": "", "bytes": written, "seconds": seconds, "fsync": sorted(syncs)[_SYNCS // 2]}


def why_no_lock(folder: Path) -> str:
    """Why files in a folder cannot be locked; empty where they can."""
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".ftlaunch-check-") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return str(error.strerror).lower()
    return ""


def ask(helpers: HelperProcesses, folder: Path, limit: float, lockable: Sequence[Path] = ()) -> dict[str, Any]:
    """Run `measure` in a helper process: its answer, or {"error"}. Waits `limit` seconds at most.

    lockable: the folders of which "locks" tells why their files cannot be locked.
    """
    program = module("ftlaunch.tools.preflight.disk", str(folder), *map(str, lockable))
    child = helpers.start(program, stdout=PIPE, outlives_us=True)
    try:
        said, _ = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        child.kill()  # not waited for: a process in a write that does not end cannot die
        return {"error": f"no answer within {duration(limit)}"}
    try:
        answer: dict[str, Any] = json.loads(said)
    except ValueError:
        return {"error": f"the process that wrote ended with status {child.returncode}"}
    return answer


def main() -> int:
    """Answer for the folder on the command line."""
    try:
        answer = measure(Path(sys.argv[1]))
        answer["locks"] = {folder: why_no_lock(Path(folder)) for folder in sys.argv[2:]}
    except OSError as error:
        answer = {"error": str(error.strerror).lower()}
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
