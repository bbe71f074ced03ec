"""Finds runs for `ftctl`: their run dirs, journals, memory directories and supervisors.

Runs in the process of a command. All functions touch files at once and may wait for storage; none changes anything.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch.common.suggestions import did_you_mean
from ftlaunch.history.events import ENDS, sound
from ftlaunch.history.job_index import known_jobs
from ftlaunch.history.journal import EVENTS, newest_events, read_events
from ftlaunch.memory.cleanup import job_dirs
from ftlaunch.memory.directory import memory_dirs, read_places
from ftlaunch.memory.living_jobs import LivingJob, living_jobs
from ftlaunch_contract.protocol import memory_root, process_start_time

RUNS = Path("runs")
CLAIMS = "head"
"""the folder in the run dir of a job of several nodes where processes claim to be its head"""
UNSHARED = "unshared"
"""the file in that folder that says that the head of this run dir had nodes with run dirs of their own"""
_LONGEST_NAME = 255  # bytes of a file name that Linux allows
_LISTS = "; `ftctl jobs` lists your jobs"
_MOST_NAMED = 12  # runs that a sentence lists


class CannotFind(Exception):
    """There is no such run; the message says what is missing and what there is."""

    lacking = "find"
    """verb for what cannot be done with the run"""


class DamagedJournal(CannotFind):
    """There is a journal, but a field that is needed is missing or nonsense; the message names the field."""

    lacking = "read"


class NoJournal(CannotFind):
    """The run dir, or the journal in it, does not exist."""


class RunDirDeleted(CannotFind):
    """The job runs, but its run dir or its journal is gone, so that only its supervisor can be asked."""

    def __init__(self, run: Run) -> None:
        """Name the job, its supervisor, and what is lost. run: made from the job's memory directory."""
        job = run.job_id
        super().__init__(
            f"job {job} runs (pid {run.pid}), and its {run.lost} ({run.run_dir}): only its supervisor can be asked,"
            f" by `ftctl status {job}` and `ftctl stop {job}`"
        )
        self.run = run


@dataclass(frozen=True)
class Run:
    """A run dir and the events of its journal.

    Raises:
        DamagedJournal: by each property, if the field that it needs is missing or nonsense.
    """

    run_dir: Path
    events: Sequence[Mapping[str, Any]]
    """events of the journal in order, possibly not all; each has at least its name"""
    deleted: tuple[int, int] | None = None
    """device and inode of the former run dir, if the job runs but has lost its journal; otherwise None"""
    lost: str = ""
    """what is wrong with a lost run dir, in words that follow `its`"""

    @property
    def start(self) -> Mapping[str, Any]:
        """The newest `job_started` event."""
        for event in self.events[::-1]:
            if str(event["event"]) == "job_started":
                return event
        raise DamagedJournal(f"{self.run_dir / EVENTS} does not say that a job was started")

    @property
    def end(self) -> Mapping[str, Any] | None:
        """The event that ended the newest run of the supervisor; None if that run has no end."""
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
        """The directory of the job's pages and control socket."""
        return Path(self._text("memory_dir"))

    @property
    def log_dir(self) -> Path:
        """The directory of the ranks' logs."""
        return Path(self._text("log_dir", str(self.run_dir / "logs")))

    @property
    def checkpoint_dir(self) -> Path:
        """The directory of the job's checkpoints."""
        return Path(self._text("checkpoint_dir", str(self.run_dir / "checkpoints")))

    @property
    def has_memory(self) -> bool:
        """Whether `memory_dir` still belongs to this run; another job with the same id may have taken it since."""
        places = read_places(self.memory_dir)
        return places is not None and (places.device, places.inode) == self._identity

    @property
    def agents(self) -> list[Path]:
        """The memory directories of this job's agents on this machine; none if the job has a single node."""
        found = []
        for path in sorted(job_dirs(memory_root(os.getuid()))):
            places = read_places(path)
            if places is None or (places.device, places.inode) != self._identity:
                continue
            if path != self.memory_dir:
                found.append(path)
        return found

    @property
    def pid(self) -> int:
        """The pid of the supervisor that was started last."""
        return self._number("pid")

    @property
    def is_unshared(self) -> bool:
        """Whether the head of this run dir had nodes that do not share it."""
        return (self.run_dir / CLAIMS / UNSHARED).exists()

    @property
    def elsewhere(self) -> str:
        """The host of the newest supervisor, if that is another host and the run has no end; otherwise empty."""
        host = self._text("host", "")
        return host if host not in ("", socket.gethostname()) and self.end is None else ""

    @property
    def alive(self) -> bool:
        """Whether the newest supervisor lives on this machine."""
        return process_start_time(self.pid) == self._number("start_time", 0) != 0

    def reload(self) -> Run:
        """Return the run as its journal says now; a run that has lost its journal is returned unchanged.

        Raises:
            CannotFind: the journal cannot be read.
        """
        return self if self.deleted else load(self.run_dir)

    @property
    def _identity(self) -> tuple[int, int]:
        """Device and inode of the run dir. Raises CannotFind if the run dir has just been deleted."""
        if self.deleted:
            return self.deleted
        try:
            found = self.run_dir.stat()
        except OSError as error:
            raise unreadable(self.run_dir, error) from error
        return found.st_dev, found.st_ino

    def _text(self, name: str, default: str | None = None) -> str:
        """Return a text of the newest start. Raises DamagedJournal."""
        value = self.start.get(name, default)
        if not isinstance(value, str) or (default is None and not value) or "\0" in value:
            raise self._damaged(name, "text")
        return value

    def _number(self, name: str, default: int | None = None) -> int:
        """Return a whole number of the newest start. Raises DamagedJournal."""
        value = self.start.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
            raise self._damaged(name, "a number")
        return value

    def _damaged(self, name: str, needed: str) -> DamagedJournal:
        given = ascii(self.start[name])[:60] if name in self.start else "missing"
        return DamagedJournal(f"{self.run_dir / EVENTS}: `{name}` of its job_started is {given}; {needed} is needed")


def load(run_dir: Path) -> Run:
    """Read the whole journal of a run dir. Raises CannotFind if it cannot be read."""
    try:
        return Run(run_dir, list(map(sound, read_events(run_dir))))
    except OSError as error:
        raise unreadable(run_dir / EVENTS, error) from error


def load_newest(run_dir: Path, *, is_any_start_enough: bool = False) -> Run:
    """Return a run with only its newest events, which are found from the journal's end, however long the journal is.

    Args:
        run_dir: the run dir.
        is_any_start_enough: as `newest_events` takes it.

    Raises:
        CannotFind: the journal cannot be read.
    """
    try:
        return Run(run_dir, newest_events(run_dir, is_any_start_enough=is_any_start_enough))
    except OSError as error:
        raise unreadable(run_dir / EVENTS, error) from error


def unreadable(path: Path, error: OSError) -> CannotFind:
    """Return the exception that describes a path that cannot be read."""
    kind = NoJournal if isinstance(error, (FileNotFoundError, NotADirectoryError)) else CannotFind
    return kind(f"{path}: {(error.strerror or str(error)).lower()}")


def find(name: str | None, runs: Path = RUNS) -> Run:
    """Return the run that a user means, with its whole journal.

    Args:
        name: as `locate` takes it.
        runs: folder of run dirs.

    Raises:
        CannotFind: there is no such run, or its journal cannot be read.
    """
    return load(locate(name, runs))


def run_saving_to(checkpoint_dir: Path) -> Path | None:
    """Return the run dir of the run that saves to a directory; None if no such run is known.

    Candidates are the parent folder of the directory, the runs in RUNS, and the jobs of the index. Of several, the run
    whose journal was written last is returned.
    """
    candidates = [checkpoint_dir.absolute().parent]
    if RUNS.is_dir():
        candidates += RUNS.iterdir()
    candidates += [Path(job.run_dir) for job in known_jobs()]
    found: dict[Path, float] = {}
    for run_dir in candidates:
        with contextlib.suppress(OSError, CannotFind):
            if (run_dir / EVENTS).is_file() and load(run_dir).checkpoint_dir.resolve() == checkpoint_dir.resolve():
                found[run_dir.resolve()] = (run_dir / EVENTS).stat().st_mtime
    return max(found, key=found.__getitem__, default=None)


def find_to_ask(name: str | None, runs: Path = RUNS) -> Run:
    """Return the run that a user means, for commands that only ask its supervisor.

    Unlike `find`, this also returns a running job whose run dir was deleted, since its supervisor still answers.

    Args:
        name: as `locate` takes it.
        runs: folder of run dirs.

    Raises:
        CannotFind: there is no such run, or its journal cannot be read.
    """
    try:
        return find(name, runs)
    except RunDirDeleted as deleted:
        return deleted.run


def locate(name: str | None, runs: Path = RUNS) -> Path:
    """Return the run dir that a user means, without reading its journal.

    Args:
        name: a run dir, or a job id: of a run in `runs`, of a running job, or of a job in the index, in this order.
            None means the only run in `runs`.
        runs: folder of run dirs.

    Raises:
        RunDirDeleted: the job runs, but its run dir is gone.
        CannotFind: there is no such run, or there are several.
    """
    if name is None:
        return _only_run(runs)
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
    if (deleted := _find_deleted(name)) is not None:
        raise RunDirDeleted(deleted)
    raise CannotFind(f"{_describe_missing(name, runs)}{_LISTS}")


def memories_of(name: str) -> list[Path]:
    """Return the memory directories of the jobs with this id; none if the name cannot be an id."""
    fits = name and "/" not in name and not name.startswith(".") and len(os.fsencode(name)) <= _LONGEST_NAME
    return memory_dirs(name) if fits else []


def _has_journal(run_dir: Path) -> bool:
    """Return whether there is a journal, or anything with its name. Raises CannotFind if that may not be examined."""
    try:
        os.lstat(run_dir / EVENTS)
    except PermissionError as error:
        raise unreadable(run_dir, error) from error
    except (OSError, ValueError):  # the name may be too long, or impossible for a file
        return False
    return True


def _only_run(runs: Path) -> Path:
    """Return the only run dir in a folder. Raises CannotFind if there are none, or several."""
    run_dirs = runs_in(runs)
    if len(run_dirs) == 1:
        return run_dirs[0]
    if not run_dirs:
        living = sorted(_living_ids())
        running = f"; job {living[0]} is running" if len(living) == 1 else ""
        raise CannotFind(f"there is no run in {runs}/ here; name a run dir or a job id{running}{_LISTS}")
    raise CannotFind(f"there are {len(run_dirs)} runs in {runs}/; name one{_list_known(runs)}")


def runs_in(runs: Path) -> list[Path]:
    """Return the run dirs in a folder, sorted."""
    return sorted(path.parent for path in runs.glob(f"*/{EVENTS}"))


def _describe_missing(name: str, runs: Path) -> str:
    """Say that there is no run with this name, and which name may have been meant."""
    ids = {job.job_id for job in known_jobs()} | _living_ids()
    meant = did_you_mean(name, [*ids, *(path.name for path in runs_in(runs))])
    called = "" if "/" in name else f"no job is called {name}, and there is "
    return f"{called}no {EVENTS} in {name} or {runs / name}{meant}{_list_known(runs)}"


def _living_ids() -> set[str]:
    return {job.job_id for job in living_jobs()}


def _list_known(runs: Path) -> str:
    """List the runs in a folder, as the end of a sentence."""
    names = [path.name for path in runs_in(runs)]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"; known are {', '.join(names[:_MOST_NAMED])}{more}" if names else ""


def runs_without_dir(living: Iterable[LivingJob]) -> list[Run]:
    """Return the runs of running jobs whose run dir or journal is gone, as far as their memory directories tell.

    Args:
        living: the running jobs.
    """
    found: dict[tuple[int, int], Run] = {}
    # The ids of agents are longer than that of their head, so the head comes first and represents the job.
    for job in sorted(living, key=lambda job: (len(job.job_id), job.directory)):
        identity = (job.places.device, job.places.inode)
        if (lost := job.lost(EVENTS)) and identity not in found:
            found[identity] = Run(
                run_dir=Path(job.places.run_dir),
                events=[_start_of(job)],
                deleted=identity,
                lost=lost,
            )
    return list(found.values())


def _start_of(job: LivingJob) -> dict[str, Any]:
    """Return a `job_started` event with what is known of a job without a journal."""
    return {
        "event": "job_started",
        "job_id": job.job_id,
        "pid": job.pid,
        "start_time": job.start_time,
        "memory_dir": str(job.directory),
        "checkpoint_dir": job.places.checkpoint_dir,
    }


def _find_deleted(name: str) -> Run | None:
    """Return the running job without a run dir that a name means; None if there is none.

    Args:
        name: the job's id, its former run dir, or its memory directory.

    Raises:
        CannotFind: the name means several jobs.
    """
    path = os.path.realpath(name)
    found = []
    for run in runs_without_dir(living_jobs()):
        if name in (run.job_id, run.memory_dir.name) or path in (str(run.run_dir), str(run.memory_dir)):
            found.append(run)
    if len(found) > 1:
        named = ", ".join(run.memory_dir.name for run in found)
        raise CannotFind(f"{len(found)} running jobs have the id {name}, and their run dirs were deleted; name {named}")
    return found[0] if found else None
