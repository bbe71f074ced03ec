"""Reads and writes `<run-dir>/limits.json`: the longest healthy waits of a job, across attempts and runs."""

from __future__ import annotations

import json
from pathlib import Path

from ftlaunch.health.time_limits import BOUNDS
from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.regular_file import open_regular

LIMITS = "limits.json"
_VERSION = 1
_LARGEST = 64 << 10  # bytes that are read; a file of ours is never larger
_LONGEST_SECONDS = 30 * 86400.0  # no job waits longer for one thing


class NotOurs(Exception):
    """The file is damaged or belongs to another job. The message is a sentence for people."""


def read(run_dir: Path, job_id: str) -> dict[str, float]:
    """Return the longest waits in seconds, by kind of wait; empty if there is no file.

    Raises:
        NotOurs: the file is damaged, or belongs to another job.
        OSError: the file cannot be read.
    """
    path = run_dir / LIMITS
    try:
        with open_regular(path) as file:
            content = file.read(_LARGEST)
    except FileNotFoundError:
        return {}
    try:
        noted = json.loads(content)
    except (ValueError, RecursionError):
        raise NotOurs("it is no JSON") from None
    if not isinstance(noted, dict) or noted.get("version") != _VERSION or not isinstance(noted.get("longest"), dict):
        raise NotOurs("it does not look like one")
    if noted.get("job_id") != job_id:
        raise NotOurs("it is of another job")
    if not all(kind in BOUNDS and _is_wait(seconds) for kind, seconds in noted["longest"].items()):
        raise NotOurs("it holds what cannot be")
    return {kind: float(seconds) for kind, seconds in noted["longest"].items()}


def _is_wait(seconds: object) -> bool:
    """Return whether a value of the file can be the length of a wait."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return False
    return 0 <= seconds <= _LONGEST_SECONDS  # NaN is not


def write(run_dir: Path, job_id: str, longest: dict[str, float]) -> None:
    """Replace the file durably.

    Args:
        run_dir: run dir of the job.
        job_id: id of the job.
        longest: seconds by kind of wait.

    Raises:
        OSError: the file cannot be written.
    """
    rounded = {kind: round(seconds, 3) for kind, seconds in longest.items()}
    noted = {"version": _VERSION, "job_id": job_id, "longest": rounded}
    atomic.replace_durable(run_dir / LIMITS, json.dumps(noted, indent=1).encode() + b"\n")
