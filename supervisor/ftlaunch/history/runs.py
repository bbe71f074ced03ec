"""Finding a run for `ftctl`: its run dir, its journal, its memory directory, its supervisor."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch.common.suggestions import did_you_mean
from ftlaunch.history.job_index import known_jobs
from ftlaunch.history.journal import EVENTS, read_events
from ftlaunch.history.lines.numbers import sound
from ftlaunch.memory.cleanup import job_dirs
from ftlaunch.memory.directory import memory_dirs, read_places
from ftlaunch.memory.living_jobs import LivingJob, living_jobs
from ftlaunch_contract.protocol import memory_root, process_start_time

RUNS = Path("runs")
CLAIMS = "head"
"""the folder in the run dir of a job of several nodes where processes claim to be its head"""
ENDS = frozenset({"job_finished", "job_stopped", "job_failed"})
"""the events that end a run of the supervisor"""
_LONGEST_NAME = 255  # bytes that Linux allows
_LISTS = "; `ftctl jobs` lists your jobs"
_MOST_NAMED = 12  # runs that a sentence lists


class CannotFind(Exception):
    """There is no such run; the message says what is missing and what there is."""

    lacking = "find"
    """what cannot be done with the run"""


class DamagedJournal(CannotFind):
    """There is a journal, and it does not say what is asked of it; the message names the field."""

    lacking = "read"


class NoJournal(CannotFind):
    """The run dir, or the journal in it, is not there."""


class RunDirDeleted(CannotFind):
    """The job runs, and its run dir or its journal is gone: only its supervisor can be asked."""

    def __init__(self, run: Run) -> None:
        job = run.job_id
        super().__init__(
            f"job {job} runs (pid {run.pid}), and its {run.lost} ({run.run_dir}): only its supervisor can be asked,"
            f" by `ftctl status {job}` and `ftctl stop {job}`"
        )
        self.run = run


@dataclass(frozen=True)
class Run:
    """A run dir and what its journal says. Properties raise DamagedJournal where that is missing, or is nonsense."""

    run_dir: Path
    events: Sequence[Mapping[str, Any]]
    deleted: tuple[int, int] | None = None
    """device and inode of the run dir of a running job that has no journal any more; None: there is one"""
    lost: str = ""
    """what is wrong with such a run dir, behind `its`"""

    @property
    def start(self) -> Mapping[str, Any]:
        """The newest `job_started`."""
        for event in self.events[::-1]:
            if str(event["event"]) == "job_started":
                return event
        raise DamagedJournal(f"{self.run_dir / EVENTS} does not say that a job was started")

    @property
    def end(self) -> Mapping[str, Any] | None:
        """The event that ended the newest run of the supervisor; None while it has none."""
        for event in self.events[::-1]:
            name = str(event["event"])
            if name == "job_started":
                return None
            if name in ENDS:
                return event
        return None

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._text("job_id")

    @property
    def memory_dir(self) -> Path:
        """Where its pages and its control socket are."""
        return Path(self._text("memory_dir"))

    @property
    def log_dir(self) -> Path:
        """Where the logs of its ranks are."""
        return Path(self._text("log_dir", str(self.run_dir / "logs")))

    @property
    def checkpoint_dir(self) -> Path:
        """Where its checkpoints are."""
        return Path(self._text("checkpoint_dir", str(self.run_dir / "checkpoints")))

    @property
    def has_memory(self) -> bool:
        """Whether that directory is there and this run's: another job of the same id may have taken it since."""
        places = read_places(self.memory_dir)
        return places is not None and (places.device, places.inode) == self._identity

    @property
    def agents(self) -> list[Path]:
        """The memory directories of the agents of this job on this machine, where it is one of several nodes."""
        known = ((path, read_places(path)) for path in sorted(job_dirs(memory_root(os.getuid()))))
        return [
            path for path, places in known
            if places is not None and (places.device, places.inode) == self._identity
            and path != self.memory_dir
        ]  # fmt: skip

    @property
    def pid(self) -> int:
        """Process id of the supervisor started last."""
        return self._number("pid")

    @property
    def elsewhere(self) -> str:
        """The host on which that supervisor was started, where it is another one than this and has told no end."""
        host = self._text("host", "")
        return host if host not in ("", socket.gethostname()) and self.end is None else ""

    @property
    def alive(self) -> bool:
        """Whether that supervisor lives, if it runs on this machine."""
        return process_start_time(self.pid) == self._number("start_time", 0) != 0

    def again(self) -> Run:
        """The run as its journal tells it now; what is known of one whose run dir was deleted stays as it is."""
        return self if self.deleted else load(self.run_dir)

    @property
    def _identity(self) -> tuple[int, int]:
        """Device and inode of the run dir. Raises CannotFind where it has just been deleted."""
        if self.deleted:
            return self.deleted
        try:
            found = self.run_dir.stat()
        except OSError as error:
            raise unreadable(self.run_dir, error) from error
        return found.st_dev, found.st_ino

    def _text(self, name: str, default: str | None = None) -> str:
        value = self.start.get(name, default)
        if not isinstance(value, str) or (default is None and not value) or "\0" in value:
            raise self._damaged(name, "text")
        return value

    def _number(self, name: str, default: int | None = None) -> int:
        value = self.start.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
            raise self._damaged(name, "a number")
        return value

    def _damaged(self, name: str, needed: str) -> DamagedJournal:
        given = ascii(self.start[name])[:60] if name in self.start else "missing"
        return DamagedJournal(f"{self.run_dir / EVENTS}: `{name}` of its job_started is {given}; {needed} is needed")


def load(run_dir: Path) -> Run:
    """Read a run dir's journal. Raises CannotFind."""
    try:
        return Run(run_dir, list(map(sound, read_events(run_dir))))
    except OSError as error:
        raise unreadable(run_dir / EVENTS, error) from error


def unreadable(path: Path, error: OSError) -> CannotFind:
    """What is said of a path that cannot be read."""
    kind = NoJournal if isinstance(error, (FileNotFoundError, NotADirectoryError)) else CannotFind
    return kind(f"{path}: {(error.strerror or str(error)).lower()}")


def find(name: str | None, runs: Path = RUNS) -> Run:
    """The run that `name` means, see `locate`. Raises CannotFind."""
    return load(locate(name, runs))


def run_saving_to(checkpoint_dir: Path) -> Path | None:
    """The run dir of the run that saves to a checkpoint directory, and that was written to last; None: none is known.

    Looked at are the folder around it, the runs of this folder, and those that were noted.
    """
    around = [checkpoint_dir.absolute().parent, *(RUNS.iterdir() if RUNS.is_dir() else ())]
    noted = [Path(job.run_dir) for job in known_jobs()]
    found: dict[Path, float] = {}
    for run_dir in (*around, *noted):
        with contextlib.suppress(OSError, CannotFind):
            if (run_dir / EVENTS).is_file() and load(run_dir).checkpoint_dir.resolve() == checkpoint_dir.resolve():
                found[run_dir.resolve()] = (run_dir / EVENTS).stat().st_mtime
    return max(found, key=found.__getitem__, default=None)


def find_to_ask(name: str | None, runs: Path = RUNS) -> Run:
    """As `find`, for what only asks the supervisor: it can be asked also where the run dir was deleted."""
    try:
        return find(name, runs)
    except RunDirDeleted as deleted:
        return deleted.run


def locate(name: str | None, runs: Path = RUNS) -> Path:
    """The run dir of the run that `name` means; its journal is not read.

    The name is a run dir, or the id of a job: of this folder, running, or noted, in this order. None: the only run
    in `runs`. Raises CannotFind.
    """
    if name is None:
        return _only(runs)
    for path in (Path(name), runs / name):
        if _has_journal(path):
            return path
    memories = [Path(places.run_dir) for path in memories_of(name) if (places := read_places(path)) is not None]
    known = memories or [Path(job.run_dir) for job in known_jobs() if job.job_id == name]
    found = [run_dir for run_dir in known if _has_journal(run_dir)]
    if len(found) > 1:
        raise CannotFind(f"{len(found)} jobs have the id {name}; name a run dir: {', '.join(map(str, found))}")
    if found:
        return found[0]
    if (deleted := _deleted(name)) is not None:
        raise RunDirDeleted(deleted)
    raise CannotFind(f"{_missing(name, runs)}{_LISTS}")


def memories_of(name: str) -> list[Path]:
    """The memory directories of the jobs of that id; a name that cannot be an id has none."""
    fits = name and "/" not in name and not name.startswith(".") and len(os.fsencode(name)) <= _LONGEST_NAME
    return memory_dirs(name) if fits else []


def _has_journal(run_dir: Path) -> bool:
    """Whether a journal is there, or something in its place. Raises CannotFind where that cannot be seen."""
    try:
        os.lstat(run_dir / EVENTS)
    except PermissionError as error:
        raise unreadable(run_dir, error) from error
    except (OSError, ValueError):  # a name may be too long, or none that a file can have
        return False
    return True


def _only(runs: Path) -> Path:
    there = runs_in(runs)
    if len(there) == 1:
        return there[0]
    if not there:
        living = sorted(_living_ids())
        running = f"; job {living[0]} is running" if len(living) == 1 else ""
        raise CannotFind(f"there is no run in {runs}/ here; name a run dir or a job id{running}{_LISTS}")
    raise CannotFind(f"there are {len(there)} runs in {runs}/; name one{_listed(runs)}")


def runs_in(runs: Path) -> list[Path]:
    """The run dirs in a folder."""
    return sorted(path.parent for path in runs.glob(f"*/{EVENTS}"))


def _missing(name: str, runs: Path) -> str:
    """What is missing, and which name may have been meant."""
    ids = {job.job_id for job in known_jobs()} | _living_ids()
    meant = did_you_mean(name, [*ids, *(path.name for path in runs_in(runs))])
    called = "" if "/" in name else f"no job is called {name}, and there is "
    return f"{called}no {EVENTS} in {name} or {runs / name}{meant}{_listed(runs)}"


def _living_ids() -> set[str]:
    return {job.job_id for job in living_jobs()}


def _listed(runs: Path) -> str:
    names = [path.name for path in runs_in(runs)]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"; known are {', '.join(names[:_MOST_NAMED])}{more}" if names else ""


def runs_without_dir(living: Iterable[LivingJob]) -> list[Run]:
    """Those of running jobs whose run dir, or whose journal, is gone. What is known of them is from their memory."""
    found: dict[tuple[int, int], Run] = {}
    for job in sorted(living, key=lambda job: (len(job.job_id), job.directory)):
        identity = job.places.device, job.places.inode
        if (lost := job.lost(EVENTS)) and identity not in found:  # a head comes before its agents, whose ids are longer
            found[identity] = Run(Path(job.places.run_dir), [_start_of(job)], identity, lost)
    return list(found.values())


def _start_of(job: LivingJob) -> dict[str, Any]:
    return {
        "event": "job_started", "job_id": job.job_id, "pid": job.pid, "start_time": job.start_time,
        "memory_dir": str(job.directory), "checkpoint_dir": job.places.checkpoint_dir,
    }  # fmt: skip


def _deleted(name: str) -> Run | None:
    """The only running job without a run dir that a name means: by its id, its run dir, or its memory directory."""
    asked = os.path.realpath(name)
    found = [
        run for run in runs_without_dir(living_jobs())
        if name in (run.job_id, run.memory_dir.name) or asked in (str(run.run_dir), str(run.memory_dir))
    ]  # fmt: skip
    if len(found) > 1:
        named = ", ".join(run.memory_dir.name for run in found)
        raise CannotFind(f"{len(found)} running jobs have the id {name}, and their run dirs were deleted; name {named}")
    return found[0] if found else None
