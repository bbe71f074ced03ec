"""Measures how fast a folder takes data, and whether files can be locked; a program that answers with JSON.

    python -m ftlaunch.tools.preflight.disk FOLDER [FOLDER TO BE LOCKED]...

The measurement runs in a process of its own, because a file system that does not answer can block a process for ever.
`ask` starts that process and reads the answer.
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

_BLOCK = 1 << 20  # bytes
_BLOCKS = 32
_MAX_WRITE_SECONDS = 5.0  # no further block is written after this time
_SYNCS = 5


def measure(folder: Path) -> dict[str, Any]:
    """Write up to 32 MiB to an unnamed file in a folder.

    Returns:
        `bytes` and `seconds` of a write with its fsync, `fsync`: the median seconds of a small fsync, `error`: empty.

    Raises:
        OSError: the folder cannot be written to.
    """
    block = os.urandom(_BLOCK)  # random, so that a file system cannot compress the data
    # The file has no name, so that nothing is left on the disk whatever kills this process.
    with tempfile.TemporaryFile(dir=folder, prefix=".ftlaunch-check-", buffering=0) as file:
        began = time.monotonic()
        written = 0
        while written < _BLOCK * _BLOCKS and time.monotonic() - began < _MAX_WRITE_SECONDS:
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
    """Return why files in a folder cannot be locked; empty if they can."""
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".ftlaunch-check-") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return str(error.strerror).lower()
    return ""


def ask(helpers: HelperProcesses, folder: Path, limit: float, lockable: Sequence[Path] = ()) -> dict[str, Any]:
    """Run `measure` in a helper process.

    Args:
        helpers: starts the process.
        folder: the folder to measure.
        limit: longest wait in seconds.
        lockable: folders to try locks in.

    Returns:
        The answer of `measure`, with `locks`: by folder why files there cannot be locked; or only `error`.
    """
    program = module("ftlaunch.tools.preflight.disk", str(folder), *map(str, lockable))
    child = helpers.start(program, stdout=PIPE, outlives_us=True)
    try:
        said, _ = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        child.kill()  # no wait: a process in a write that never ends cannot die
        return {"error": f"no answer within {duration(limit)}"}
    try:
        answer: dict[str, Any] = json.loads(said)
    except ValueError:
        return {"error": f"the process that wrote ended with status {child.returncode}"}
    return answer


def main() -> int:
    """Measure the folders on the command line and print the answer."""
    try:
        answer = measure(Path(sys.argv[1]))
        answer["locks"] = {folder: why_no_lock(Path(folder)) for folder in sys.argv[2:]}
    except OSError as error:
        answer = {"error": str(error.strerror).lower()}
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
