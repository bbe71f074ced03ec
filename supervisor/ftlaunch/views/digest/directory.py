"""Reads all run dirs of a directory, one after another. A run dir that cannot be read is named in the digest.

Only reads files. Memory stays small, because each journal is read as a stream and reduced to a `JobDigest`.
"""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ftlaunch.history.journal import EVENTS, stream_events
from ftlaunch.history.story import CLASSES
from ftlaunch.history.timeline import stream_moments
from ftlaunch.views.digest.flaky import Exposure, FlakyNode, flaky_nodes
from ftlaunch.views.digest.hosts import HostTime
from ftlaunch.views.digest.job_digest import JobDigest, digest_of

_SIGNS = ("lock", "report.json")  # files that mark a folder without a journal as a run dir


@dataclass
class Digest:
    """What the jobs of a directory did from a point in time on."""

    directory: str
    since: float
    """the point in time, in seconds since the epoch; 0 for all that the journals hold"""
    jobs: list[JobDigest] = field(default_factory=list)
    idle: int = 0
    """number of jobs without an event since then"""
    unread: dict[str, str] = field(default_factory=dict)
    """reason by name for each run dir that could not be read"""

    @property
    def rank_seconds(self) -> dict[str, float]:
        """Seconds by class of time, multiplied by the ranks of each job: an hour of 512 ranks counts 512 hours."""
        return {name: sum(job.seconds[name] * max(job.ranks, 1) for job in self.jobs) for name in CLASSES}

    @property
    def causes(self) -> Counter[str]:
        """Number of incidents of all jobs by class."""
        return sum((job.causes for job in self.jobs), Counter())

    @property
    def hosts(self) -> dict[str, HostTime]:
        """Times and failures by host, over all jobs; the empty name stands for an unknown host."""
        found: dict[str, HostTime] = {}
        for job in self.jobs:
            for name, host in job.hosts.items():
                found.setdefault(name, HostTime()).add(host)
        return found

    @property
    def flaky(self) -> list[FlakyNode]:
        """The nodes that fail more often than chance explains."""
        hosts = self.hosts.items()
        return flaky_nodes([Exposure(name, host.seconds, host.failures) for name, host in hosts if name])


def digest(directory: Path, since: float) -> Digest:
    """Read every run dir in a directory.

    Args:
        directory: the directory.
        since: seconds since the epoch from which on events count; 0 for all.

    Raises:
        OSError: the directory cannot be listed.
    """
    found = Digest(str(directory), since)
    for run_dir in run_dirs(directory):
        try:
            job = _read(run_dir, since)
        except OSError as error:
            found.unread[run_dir.name] = (error.strerror or str(error)).lower()
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
            found.unread[run_dir.name] = f"its journal has an event of another form ({type(error).__name__}: {error})"
        else:
            if isinstance(job, str):
                found.unread[run_dir.name] = job
            elif job is None:
                found.idle += 1
            else:
                found.jobs.append(job)
    return found


def run_dirs(directory: Path) -> list[Path]:
    """Return the run dirs in a directory, sorted by name. A run dir with several names, such as links, counts once.

    Raises:
        OSError: the directory cannot be listed.
    """
    seen: set[tuple[int, int]] = set()

    def is_new(path: Path) -> bool:
        try:
            found = path.stat()
        except OSError:
            return False
        here = found.st_dev, found.st_ino
        fresh = stat.S_ISDIR(found.st_mode) and here not in seen and _is_run_dir(path)
        seen.add(here)
        return fresh

    # Directories come before links, so that a run dir is listed under its own name.
    return sorted(filter(is_new, sorted(directory.iterdir(), key=lambda path: (path.is_symlink(), path.name))))


def _is_run_dir(path: Path) -> bool:
    return any(_exists(path / name) for name in (EVENTS, *_SIGNS))


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except PermissionError:
        return True  # in a folder that may not be entered; the digest names the folder as unread
    except OSError:
        return False
    return True


def _read(run_dir: Path, since: float) -> JobDigest | str | None:
    """Return a job's digest; a sentence if the journal cannot be used; None if the job has no event since then."""
    dropped: Counter[str] = Counter()
    whole = 0

    def read() -> Iterator[dict[str, object]]:
        nonlocal whole
        dropped.clear()
        whole = 0
        for event in stream_events(run_dir, dropped):
            whole += 1
            yield event

    try:
        if not stat.S_ISREG((run_dir / EVENTS).stat().st_mode):
            return f"{EVENTS} is no file"
    except FileNotFoundError:
        return f"there is no {EVENTS}"
    job = digest_of(run_dir.name, read, since)
    if whole == 0:
        return "its journal has no whole event"
    if job is None and next(stream_moments(read()), None) is None:
        return "its journal has no event with a time"
    if job is not None:
        job.torn = dropped.total()
    return job
