"""All run dirs of a directory, one after the other; one that cannot be read is named, and the others go on."""

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

_SIGNS = ("lock", "report.json")  # a folder with one of them, and no journal, was to be a run dir


@dataclass
class Digest:
    """What the jobs of a directory did since a time."""

    directory: str
    since: float
    """seconds of the epoch; 0: all that the journals hold"""
    jobs: list[JobDigest] = field(default_factory=list)
    idle: int = 0
    """jobs whose journals have nothing of that time"""
    unread: dict[str, str] = field(default_factory=dict)
    """run dirs that could not be read, and why"""

    @property
    def rank_seconds(self) -> dict[str, float]:
        """Seconds of each class of time, each job's times its ranks: an hour of 512 GPUs counts 512 times."""
        return {name: sum(job.seconds[name] * max(job.ranks, 1) for job in self.jobs) for name in CLASSES}

    @property
    def causes(self) -> Counter[str]:
        """Incidents of all jobs by class."""
        return sum((job.causes for job in self.jobs), Counter())

    @property
    def hosts(self) -> dict[str, HostTime]:
        """All hosts, over all jobs; under the empty name what no journal tells a host of."""
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
    """Read every run dir in a directory. since: seconds of the epoch. Raises OSError where it cannot be listed."""
    found = Digest(str(directory), since)
    for run_dir in run_dirs(directory):
        try:
            told = _read(run_dir, since)
        except OSError as error:
            found.unread[run_dir.name] = (error.strerror or str(error)).lower()
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
            found.unread[run_dir.name] = f"its journal has an event of another form ({type(error).__name__}: {error})"
        else:
            if isinstance(told, str):
                found.unread[run_dir.name] = told
            elif told is None:
                found.idle += 1
            else:
                found.jobs.append(told)
    return found


def run_dirs(directory: Path) -> list[Path]:
    """The run dirs in a directory, by name; one that has several names counts once. Raises OSError."""
    seen: set[tuple[int, int]] = set()

    def new(path: Path) -> bool:
        try:
            found = path.stat()
        except OSError:
            return False
        here = found.st_dev, found.st_ino
        fresh = stat.S_ISDIR(found.st_mode) and here not in seen and _is_run_dir(path)
        seen.add(here)
        return fresh

    # those that are no links first: a run dir is called by its own name
    return sorted(filter(new, sorted(directory.iterdir(), key=lambda path: (path.is_symlink(), path.name))))


def _is_run_dir(path: Path) -> bool:
    return any(_there(path / name) for name in (EVENTS, *_SIGNS))


def _there(path: Path) -> bool:
    try:
        path.lstat()
    except PermissionError:
        return True  # a folder that may not be looked into: it is named
    except OSError:
        return False
    return True


def _read(run_dir: Path, since: float) -> JobDigest | str | None:
    """A job's digest, or why there is none; None where there is nothing to tell since then."""
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
    told = digest_of(run_dir.name, read, since)
    if whole == 0:
        return "its journal has no whole event"
    if told is None and next(stream_moments(read()), None) is None:
        return "its journal has no event with a time"
    if told is not None:
        told.torn = dropped.total()
    return told
