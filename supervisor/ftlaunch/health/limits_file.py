"""`<run-dir>/limits.json`: the longest healthy waits of a job, across attempts and runs."""

from __future__ import annotations

import json
from pathlib import Path

from ftlaunch.health.time_limits import BOUNDS
from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.regular_file import open_regular

LIMITS = "limits.json"
_VERSION = 1
_LARGEST = 64 << 10  # bytes of a file that could be ours
_LONGEST = 30 * 86400.0  # seconds: no job waits so long for one thing


class NotOurs(Exception):
    """The file is damaged, or it is of another job."""


def read(run_dir: Path, job_id: str) -> dict[str, float]:
    """Kind of wait -> the longest, seconds; empty where there is no file. Raises NotOurs or OSError."""
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
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return False
    return 0 <= seconds <= _LONGEST  # no NaN is


def write(run_dir: Path, job_id: str, longest: dict[str, float]) -> None:
    """Replace the file. Raises OSError."""
    rounded = {kind: round(seconds, 3) for kind, seconds in longest.items()}
    noted = {"version": _VERSION, "job_id": job_id, "longest": rounded}
    atomic.replace_durable(run_dir / LIMITS, json.dumps(noted, indent=1).encode() + b"\n")
