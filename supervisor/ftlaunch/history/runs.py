"""Finding a run for `ftctl`: its run dir, its journal, its memory directory, its supervisor."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch.common.suggestions import did_you_mean
from ftlaunch.history.job_index import known_jobs
from ftlaunch.history.journal import EVENTS, read_events
from ftlaunch.memory.cleanup import job_dirs
from ftlaunch.memory.directory import memory_dirs, read_places
from ftlaunch_contract.protocol import memory_root, process_start_time

RUNS = Path("runs")
_ENDS = {"job_finished", "job_stopped", "job_failed"}


class CannotFind(Exception):
    """There is no such run; the message says what is missing and what there is."""


@dataclass(frozen=True)
class Run:
    """A run dir and what its journal says."""

    run_dir: Path
    events: Sequence[Mapping[str, Any]]

    @property
    def start(self) -> Mapping[str, Any]:
        """The newest `job_started`. Raises CannotFind where its line is lost."""
        for event in self.events[::-1]:
            if str(event["event"]) == "job_started":
                return event
        raise CannotFind(f"{self.run_dir / EVENTS} does not say that a job was started")

    @property
    def end(self) -> Mapping[str, Any] | None:
        """The event that ended the newest run of the supervisor; None while it has none."""
        for event in self.events[::-1]:
            name = str(event["event"])
            if name == "job_started":
                return None
            if name in _ENDS:
                return event
        return None

    @property
    def job_id(self) -> str:
        """The job's id."""
        return str(self.start["job_id"])

    @property
    def memory_dir(self) -> Path:
        """Where its pages and its control socket are."""
        return Path(self.start["memory_dir"])

    @property
    def log_dir(self) -> Path:
        """Where the logs of its ranks are."""
        return Path(self.start.get("log_dir", self.run_dir / "logs"))

    @property
    def has_memory(self) -> bool:
        """Whether that directory is there and this run's: another job of the same id may have taken it since."""
        places, here = read_places(self.memory_dir), self.run_dir.stat()
        return places is not None and (places.device, places.inode) == (here.st_dev, here.st_ino)

    @property
    def agents(self) -> list[Path]:
        """The memory directories of the agents of this job on this machine, where it is one of several nodes."""
        here = self.run_dir.stat()
        known = ((path, read_places(path)) for path in sorted(job_dirs(memory_root(os.getuid()))))
        return [
            path for path, places in known
            if places is not None and (places.device, places.inode) == (here.st_dev, here.st_ino)
            and path != self.memory_dir
        ]  # fmt: skip

    @property
    def pid(self) -> int:
        """Process id of the supervisor started last."""
        return int(self.start["pid"])

    @property
    def elsewhere(self) -> str:
        """The host on which that supervisor was started, where it is another one than this and has told no end."""
        host = str(self.start.get("host", ""))
        return host if host not in ("", socket.gethostname()) and self.end is None else ""

    @property
    def alive(self) -> bool:
        """Whether that supervisor lives, if it runs on this machine."""
        return process_start_time(self.pid) == self.start.get("start_time") != 0

    def again(self) -> Run:
        """The run as its journal tells it now."""
        return load(self.run_dir)


def load(run_dir: Path) -> Run:
    """Read a run dir's journal. Raises CannotFind."""
    try:
        return Run(run_dir, read_events(run_dir))
    except OSError as error:
        raise CannotFind(f"{run_dir / EVENTS}: {(error.strerror or str(error)).lower()}") from error


def find(name: str | None, runs: Path = RUNS) -> Run:
    """The run that `name` means, see `locate`. Raises CannotFind."""
    return load(locate(name, runs))


def locate(name: str | None, runs: Path = RUNS) -> Path:
    """The run dir of the run that `name` means; its journal is not read.

    The name is a run dir, or the id of a job: of this folder, running, or noted, in this order. None: the only run
    in `runs`. Raises CannotFind.
    """
    if name is None:
        return _only(runs)
    for path in (Path(name), runs / name):
        if (path / EVENTS).is_file():
            return path
    known = [Path(places.run_dir) for path in memories_of(name) if (places := read_places(path)) is not None]
    known = known or [Path(job.run_dir) for job in known_jobs() if job.job_id == name]
    found = [run_dir for run_dir in known if (run_dir / EVENTS).is_file()]
    if len(found) > 1:
        raise CannotFind(f"{len(found)} jobs have the id {name}; name a run dir: {', '.join(map(str, found))}")
    if found:
        return found[0]
    meant = did_you_mean(name, [path.name for path in runs_in(runs)])
    raise CannotFind(f"no {EVENTS} in {name} or {runs / name}{meant}{_listed(runs)}")


def memories_of(name: str) -> list[Path]:
    """The memory directories of the jobs of that id; a name that cannot be an id has none."""
    return [] if "/" in name or name.startswith(".") or not name else memory_dirs(name)


def _only(runs: Path) -> Path:
    there = runs_in(runs)
    if len(there) == 1:
        return there[0]
    if not there:
        raise CannotFind(f"there is no run in {runs}/ here; name a run dir or a job id")
    raise CannotFind(f"there are {len(there)} runs in {runs}/; name one{_listed(runs)}")


def runs_in(runs: Path) -> list[Path]:
    """The run dirs in a folder."""
    return sorted(path.parent for path in runs.glob(f"*/{EVENTS}"))


def _listed(runs: Path, most: int = 12) -> str:
    names = [path.name for path in runs_in(runs)]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"; known are {', '.join(names[:most])}{more}" if names else ""
