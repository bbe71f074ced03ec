"""Which run dirs a user has: a small file for each, in `$XDG_STATE_HOME/ftlaunch/jobs` (default: ~/.local/state).

The supervisor starts this module as a process of its own, and never waits for it: a home directory that does not answer
holds up no job, and one that cannot be written to costs a job only its line in `ftctl jobs`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ftlaunch.history.journal import EVENTS
from ftlaunch.memory.living_jobs import living_jobs
from ftlaunch.system.helper_process import HelperProcesses, WaitsForEnds
from ftlaunch.system.own_modules import module
from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.regular_file import read_regular

_LOOKED_AT = 100  # notes that each new one has looked at, drawn by chance: so the index does not grow without end
_LONGEST = 60  # seconds that this process may live: storage of an old run dir may not answer
_KEPT = 30 * 86400.0  # seconds that a run dir is remembered whose whole folder is gone: it may be mounted again


@dataclass(frozen=True)
class KnownJob:
    """A run dir, and the job that was started in it last."""

    job_id: str
    run_dir: str


def note(helpers: HelperProcesses, loop: WaitsForEnds, job_id: str, run_dir: Path) -> None:
    """Have a job noted, without waiting for it."""
    with contextlib.suppress(OSError):  # no process can be started: the job itself will say so
        helpers.start(module(__name__, job_id, str(run_dir)), stderr=None, outlives_us=True).forget_at_end(loop)


def known_jobs() -> list[KnownJob]:
    """The jobs that were noted. No run dir is looked at: it may be gone, or not answer."""
    return [job for path in _files() if (job := _read(path)) is not None]


def forget_if_gone(job: KnownJob) -> None:
    """Forget a job whose run dir was deleted, and which does not run.

    A folder that may only not be mounted now is remembered for a month.
    """
    run_dir = Path(job.run_dir)
    with contextlib.suppress(OSError, RuntimeError):  # it cannot be looked at now
        path = _path(job)
        gone = not (run_dir / EVENTS).exists()
        if gone and (run_dir.parent.exists() or path.stat().st_mtime < time.time() - _KEPT):
            path.unlink()


def _index() -> Path:
    """Raises RuntimeError where the user has no home."""
    home = os.environ.get("XDG_STATE_HOME", "")
    state = Path(home) if Path(home).is_absolute() else Path.home() / ".local/state"
    return state / "ftlaunch/jobs"


def _files() -> Iterator[Path]:
    with contextlib.suppress(OSError, RuntimeError):
        yield from sorted(_index().glob("*.json"))


def _read(path: Path) -> KnownJob | None:
    try:
        told = json.loads(read_regular(path))
        return KnownJob(str(told["job_id"]), str(told["run_dir"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _path(job: KnownJob) -> Path:
    return _index() / f"{hashlib.sha256(os.fsencode(job.run_dir)).hexdigest()[:24]}.json"


def _write(job: KnownJob) -> None:
    """Raises OSError, RuntimeError."""
    path = _path(job)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic.replace_durable(path, json.dumps(asdict(job)).encode() + b"\n")


def _prune() -> None:
    """Forget some of the jobs whose run dirs were deleted, if they have ended."""
    running = {job.places.run_dir for job in living_jobs()}
    files = list(_files())
    for path in random.sample(files, min(_LOOKED_AT, len(files))):
        job = _read(path)
        if job is not None and job.run_dir not in running:
            forget_if_gone(job)


if __name__ == "__main__":
    os.nice(19)
    signal.alarm(_LONGEST)
    with contextlib.suppress(OSError, RuntimeError):
        _write(KnownJob(sys.argv[1], str(Path(sys.argv[2]).resolve())))
        _prune()
