"""One run of one launcher: starts it, watches it by the notes of its ranks, ends it, and cleans up."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
from peers import Launcher, by_hand

from ftlaunch_contract.protocol import memory_root

JOBS = Path(__file__).parent / "jobs"
_POLL_SECONDS = 0.002  # between two readings of the notes


class Note(NamedTuple):
    """A line that a rank has written with `note` of jobs/notes.py."""

    what: str
    rank: int
    pid: int
    at: float  # monotonic seconds
    step: int


class Failed(Exception):
    """The run did not get as far as it should; the message says what was missing."""


class Trial:
    """A run in a folder of its own, whose processes end with the `with` block."""

    def __init__(self, home: Path, launcher: Launcher, ranks: int) -> None:
        """Prepare a run.

        Args:
            home: the folder, which is made.
            launcher: the launcher.
            ranks: the number of ranks.
        """
        self.home = home
        self.launcher = launcher
        self.ranks = ranks
        self._notes = home / "notes"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.began = 0.0

    def __enter__(self) -> Trial:
        self.home.mkdir()
        self._notes.touch()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            below = self.below() if process.poll() is None else []
            below += [psutil.Process(pid) for pid in self._pids() if psutil.pid_exists(pid)]
            for left in [*below, process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    left.kill()
            process.wait()

    def start(self, script: str, *args: str, more: tuple[str, ...] = (), env: dict[str, str] | None = None) -> None:
        """Start the launcher on a script of jobs/. more: options of the launcher. env: variables of its environment."""
        command = [*self.launcher.argv, *more, str(JOBS / script), *args]
        settings = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")  # of this shell; they would slow the launchers down
        environ = {name: value for name, value in os.environ.items() if name not in settings}
        environ |= {**self.launcher.env, "BENCH_NOTES": str(self._notes), "OMP_NUM_THREADS": "1"}
        environ |= {"BENCH_STATE": str(self.home / "state.pt"), **(env or {})}
        envs = [environ] if self.launcher.restarts else [environ | rank for rank in by_hand(self.ranks)]
        with (self.home / "terminal").open("wb") as out:
            self.began = time.monotonic()
            for environment in envs:
                self._processes.append(
                    subprocess.Popen(command, cwd=self.home, stdout=out, stderr=out, env=environment)
                )

    # --- what it notes --------------------------------------------------------------------------------------

    def notes(self, what: str, since: float = 0.0) -> list[Note]:
        """Return the notes of one kind that were made at `since` (monotonic seconds) or later."""
        found = []
        for line in self._lines():
            kind, rank, pid, at, step = line.split()
            if kind == what and float(at) >= since:
                note = Note(what=kind, rank=int(rank), pid=int(pid), at=float(at), step=int(step))
                found.append(note)
        return found

    def _pids(self) -> set[int]:
        return {int(line.split()[2]) for line in self._lines()}

    def _lines(self) -> list[str]:
        """Return the whole lines; the last line may be incomplete."""
        return self._notes.read_text().split("\n")[:-1]

    def wait(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until `ready()` is True. Raises Failed if the launcher ends before, or after `seconds`."""
        until = time.monotonic() + seconds
        while not ready():
            if all(process.poll() is not None for process in self._processes):
                if ready():
                    return
                raise Failed(f"it ended with {self._processes[0].returncode} before {what}")
            if time.monotonic() > until:
                raise Failed(f"no {what} within {seconds:.0f} s")
            time.sleep(_POLL_SECONDS)

    def all_noted(self, what: str, since: float, seconds: float) -> float:
        """Return when the last rank has made its first note of a kind since `since`. Raises Failed."""
        self.wait(lambda: len({note.rank for note in self.notes(what, since)}) == self.ranks, seconds, what)
        first: dict[int, float] = {}
        for note in self.notes(what, since):
            first.setdefault(note.rank, note.at)
        return max(first.values())

    # --- its processes --------------------------------------------------------------------------------------

    def below(self) -> list[psutil.Process]:
        """Return all processes below the launcher."""
        return _descendants(self._processes[0].pid)

    def own(self) -> list[psutil.Process]:
        """Return the launcher's own processes: all but the ranks and what the ranks have started."""
        ranks = self._pids()
        beneath = {process.pid for pid in ranks for process in _descendants(pid)}
        return [
            psutil.Process(self._processes[0].pid),
            *(process for process in self.below() if process.pid not in ranks | beneath),
        ]

    def send_signal(self, signum: int) -> float:
        """Send a signal to the launcher; return the moment."""
        at = time.monotonic()
        self._processes[0].send_signal(signum)
        return at

    def ended(self, seconds: float) -> float:
        """Wait until all processes that were started here have ended; return the moment. Raises Failed."""
        return self._wait_for(_opened(process.pid for process in self._processes if process.poll() is None), seconds)

    def ranks_and_launcher_ended(self, seconds: float) -> tuple[float, float]:
        """Wait for the ends of the ranks and of the launcher; return both moments. Raises Failed."""
        ranks = _opened({note.pid for note in self.notes("ready")[-self.ranks :]})
        launcher = _opened(process.pid for process in self._processes if process.poll() is None)
        return self._wait_for(ranks, seconds), self._wait_for(launcher, seconds)

    def _wait_for(self, pidfds: list[int], seconds: float) -> float:
        try:
            for pidfd in pidfds:
                if not select.select([pidfd], [], [], seconds)[0]:
                    raise Failed(f"it did not end within {seconds:.0f} s")
            return time.monotonic()
        finally:
            for pidfd in pidfds:
                os.close(pidfd)


def _descendants(pid: int) -> list[psutil.Process]:
    """Return all processes below a process; none if the process is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def _opened(pids: object) -> list[int]:
    found = []
    for pid in pids:  # type: ignore[attr-defined]
        with contextlib.suppress(ProcessLookupError):
            found.append(os.pidfd_open(pid))
    return found


def remove_memory() -> None:
    """Remove what killed launchers of this benchmark have left in memory."""
    for left in memory_root(os.getuid()).glob(f"bench-{os.getpid()}*"):
        shutil.rmtree(left)
