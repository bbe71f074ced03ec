"""The index of a user's run dirs: a small file for each, in `$XDG_STATE_HOME/ftlaunch/jobs` (default: ~/.local/state).

The supervisor runs this module as a process of its own to add a job, and never waits for that process: a home directory
that does not answer holds up no job, and one that cannot be written to costs a job only its line in `ftctl jobs`.
Commands read the index in their own process.
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
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.loop import Loop
from ftlaunch.system.own_modules import module
from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.regular_file import read_regular

_PRUNED_AT_ONCE = 100  # notes, chosen at random, that are checked with each new one, so that the index stays small
_LONGEST_SECONDS = 60  # that this process may live, because the storage of an old run dir may not answer
_KEPT_SECONDS = 30 * 86400.0  # for which a run dir is kept whose whole folder is gone, as it may be mounted again


@dataclass(frozen=True)
class KnownJob:
    """A run dir, and the last job that was started in it."""

    job_id: str
    run_dir: str


def note(helpers: HelperProcesses, loop: Loop, job_id: str, run_dir: Path) -> None:
    """Start a process that adds a job to the index, without waiting for it. Errors are ignored.

    Args:
        helpers: starts the process.
        loop: event loop that waits for the end of the process.
        job_id: the job's id.
        run_dir: the job's run dir.
    """
    with contextlib.suppress(OSError):  # if no process can be started, the job itself will report that
        helpers.start(module(__name__, job_id, str(run_dir)), stderr=None, outlives_us=True).forget_at_end(loop)


def known_jobs() -> list[KnownJob]:
    """Return the jobs of the index. Their run dirs are not examined; they may be gone, or not answer."""
    return [job for path in _files() if (job := _read(path)) is not None]


def forget_if_gone(job: KnownJob) -> None:
    """Remove a job from the index if its run dir was deleted.

    If the whole folder around the run dir is gone, it may only be unmounted, so the job is kept for a month. The caller
    makes sure that the job does not run. Errors are ignored.
    """
    run_dir = Path(job.run_dir)
    with contextlib.suppress(OSError, RuntimeError):  # the run dir cannot be examined now
        path = _path(job)
        is_gone = not (run_dir / EVENTS).exists()
        if is_gone and (run_dir.parent.exists() or path.stat().st_mtime < time.time() - _KEPT_SECONDS):
            path.unlink()


def _index() -> Path:
    """Return the folder of the index. Raises RuntimeError if the user has no home."""
    home = os.environ.get("XDG_STATE_HOME", "")
    state = Path(home) if Path(home).is_absolute() else Path.home() / ".local/state"
    return state / "ftlaunch/jobs"


def _files() -> Iterator[Path]:
    """Yield the files of the index; none if it cannot be read."""
    with contextlib.suppress(OSError, RuntimeError):
        yield from sorted(_index().glob("*.json"))


def _read(path: Path) -> KnownJob | None:
    """Return the job in a file of the index; None if the file cannot be read."""
    try:
        note = json.loads(read_regular(path))
        return KnownJob(str(note["job_id"]), str(note["run_dir"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _path(job: KnownJob) -> Path:
    """Return the file of a job, named after its run dir. Raises RuntimeError if the user has no home."""
    return _index() / f"{hashlib.sha256(os.fsencode(job.run_dir)).hexdigest()[:24]}.json"


def add(job: KnownJob) -> None:
    """Add a job to the index. Raises OSError, or RuntimeError if the user has no home."""
    path = _path(job)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic.replace_durable(path, json.dumps(asdict(job)).encode() + b"\n")


def prune() -> None:
    """Check some jobs of the index, chosen at random, and remove those that have ended and whose run dirs are gone."""
    running = {job.places.run_dir for job in living_jobs()}
    files = list(_files())
    for path in random.sample(files, min(_PRUNED_AT_ONCE, len(files))):
        job = _read(path)
        if job is not None and job.run_dir not in running:
            forget_if_gone(job)


if __name__ == "__main__":
    os.nice(19)
    signal.alarm(_LONGEST_SECONDS)
    with contextlib.suppress(OSError, RuntimeError):
        add(KnownJob(sys.argv[1], str(Path(sys.argv[2]).resolve())))
        prune()
