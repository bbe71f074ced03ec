"""Runs of a user's own job in which something is broken on purpose, compared with one in which nothing is.

Each is an `ftlaunch` of its own, in a folder of its own, up to the checkpoint of the same step. Nothing is simulated:
the ranks are really killed, and the files really cannot be written.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import yaml

from ftlaunch.history import runs
from ftlaunch.history.runs import CannotFind
from ftlaunch.memory.pages import memory_dir, remove_memory
from ftlaunch.spec.job_spec import JobSpec, resolved
from ftlaunch.system import processes
from ftlaunch.system.control_socket import SOCKET, ask
from ftlaunch.tools.rehearsal.checkpoint_diff import Likeness, compare
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.protocol import EXIT_SAVED

_LOOK = 0.02  # seconds between looks at a job
_HANG_FACTOR, _HANG_LEAST = 10.0, 5.0  # of the longest step seen undisturbed, and seconds


class CannotRehearse(Exception):
    """The job does not get anywhere even undisturbed; the message says why."""


@dataclass(frozen=True)
class RehearsalOutcome:
    """What became of one run."""

    fault: str
    seconds: float
    survived: bool
    steps_lost: int = 0
    back_after: float | None = None  # seconds from the fault to the next new step
    likeness: Likeness | None = None  # to the undisturbed run, at the last step
    trouble: str = ""  # what went wrong where it did not survive

    @property
    def good(self) -> bool:
        """Survived, and the state is the undisturbed run's."""
        return self.survived and (self.likeness is None or self.likeness.equal)


class Rehearsal:
    """All runs of one job."""

    def __init__(self, spec: JobSpec, home: Path, steps: int, limit: float) -> None:
        """home: a private folder for all runs. steps: of each run. limit: seconds a run may take."""
        self.spec, self.home, self.steps, self.limit = spec, home, steps, limit
        self._hang_timeout: float | None = None
        self._undisturbed: Path | None = None

    def undisturbed(self, name: str = "undisturbed") -> RehearsalOutcome:
        """The run that the others are compared with. Raises CannotRehearse."""
        with self._trial(name) as trial:
            trial.start()
            there = trial.wait(lambda: trial.committed(self.steps) or trial.unattached(self.steps))
            if trial.unattached(self.steps):
                raise CannotRehearse(
                    "the script does not attach(): it would be restarted, and begin again at step 0 unless it saves and"
                    " loads by itself; with the two lines of the README it goes on from the step it had reached"
                )
            if not there:
                raise CannotRehearse(f"{trial.what_happened()}; see {trial.spec.run_dir}")
            self._hang_timeout = max(_HANG_LEAST, _HANG_FACTOR * trial.longest_step)
            outcome = RehearsalOutcome(name, trial.seconds, True)
            if self._undisturbed is None:
                self._undisturbed = trial.checkpoint(self.steps)
            else:
                outcome = replace(outcome, likeness=compare(self._undisturbed, trial.checkpoint(self.steps)))
        return outcome

    def kill(self) -> RehearsalOutcome:
        """SIGKILL to the last rank, as the kernel does it for lack of memory."""
        return self._disturbed("a rank is killed", lambda trial: os.kill(trial.pids()[-1], signal.SIGKILL))

    def freeze(self) -> RehearsalOutcome:
        """SIGSTOP to the last rank: it lives, and makes no step."""
        return self._disturbed("a rank is frozen", lambda trial: os.kill(trial.pids()[-1], signal.SIGSTOP))

    def preempt(self) -> RehearsalOutcome:
        """SIGTERM to the supervisor, as a scheduler sends it; then the same command again."""

        def fault(trial: Trial) -> None:
            code = trial.stop()
            if code != EXIT_SAVED:
                raise _TrialError(f"told to stop it ended with exit code {code}, not {EXIT_SAVED}")
            trial.start()

        return self._disturbed("the job is preempted", fault)

    def full_disk(self) -> RehearsalOutcome:
        """No byte more can be written by the saver (a limit of 0 on file sizes), until a save has failed."""

        def fault(trial: Trial) -> None:
            saver = trial.saver()
            before = saver.rlimit(psutil.RLIMIT_FSIZE)
            saver.rlimit(psutil.RLIMIT_FSIZE, (0, before[1]))
            try:
                if not trial.wait(lambda: bool(trial.events("checkpoint_failed"))):
                    raise _TrialError(f"no save has failed: {trial.what_happened()}")
            finally:
                with contextlib.suppress(psutil.NoSuchProcess):
                    saver.rlimit(psutil.RLIMIT_FSIZE, before)

        return self._disturbed("storage is full", fault, saves=2)

    def _disturbed(self, fault: str, strike: Callable[[Trial], None], saves: int = 1) -> RehearsalOutcome:
        assert self._undisturbed is not None
        at = max(self.steps // 3, 1)
        with self._trial(fault, saves) as trial:
            trial.start()
            try:
                if not trial.wait(lambda: trial.step() >= at):
                    raise _TrialError(f"it did not come to step {at}: {trial.what_happened()}")
                strike(trial)
                struck = time.monotonic()
                if not trial.wait(lambda: trial.committed(self.steps)):
                    raise _TrialError(trial.what_happened())
                likeness = compare(self._undisturbed, trial.checkpoint(self.steps))
            except (_TrialError, psutil.NoSuchProcess, layout.Damaged) as trouble:
                return RehearsalOutcome(fault, trial.seconds, False, trouble=str(trouble))
            lost = sum(event["steps_lost"] or 0 for event in trial.events("resumed"))
            back = [event["mono"] - struck for event in trial.events("recovered", "resumed")]
            after = max((seconds for seconds in back if seconds > 0), default=None)
            return RehearsalOutcome(fault, trial.seconds, True, lost, after, likeness)

    def _trial(self, name: str, saves: int = 1) -> Trial:
        name = name.replace(" ", "-")
        run_dir = self.home / name
        spec = replace(
            self.spec,
            job_id=f"rehearsal-{os.getpid()}-{name}",
            run_dir=run_dir,
            log_dir=run_dir / "logs",
            checkpoint_dir=run_dir / "checkpoints",
            storage_interval_steps=max(self.steps // saves, 1),
            storage_interval_seconds=None,
            keep=saves + 1,
            notify=(),
            backoff_first=0.0,
            hang_timeout=self.spec.hang_timeout if self._hang_timeout is None else self._hang_timeout,
        )
        return Trial(spec, self.limit)


def _heeding(parent: int) -> Callable[[], None]:
    """For a preexec_fn. A shell has what runs in the background ignore SIGINT, and a trial is ended by SIGINT."""
    die_too = processes.dies_with(parent)

    def heed() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        die_too()

    return heed


class _TrialError(Exception):
    """The job did not survive; the message says how."""


class Trial:
    """One run, ended and cleaned up behind at the end of the `with` block."""

    def __init__(self, spec: JobSpec, limit: float) -> None:
        self.spec, self._limit = spec, limit
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self.longest_step = 0.0

    def __enter__(self) -> Trial:
        self._began = time.monotonic()
        self.spec.run_dir.mkdir(mode=0o700, parents=True)
        file = self.spec.run_dir / "job.yaml"
        asked = resolved(self.spec) | {"args": list(self.spec.args), "env": dict(self.spec.env)}
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump(asked, sort_keys=False))
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        with contextlib.suppress(FileNotFoundError):
            remove_memory(memory_dir(self.spec.job_id))

    # --- the job --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, or go on."""
        command = [sys.executable, "-m", "ftlaunch", str(self.spec.run_dir / "job.yaml")]
        with (self.spec.run_dir / "terminal.log").open("ab") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=_heeding(os.getpid()),  # noqa: PLW1509
            )

    def stop(self) -> int:
        """Tell it to stop; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait()

    def _end(self) -> None:
        if self._process is None:
            return
        for _ in range(2):  # the second one means now
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(1.0)
        self._process.wait()

    def wait(self, ready: Callable[[], bool]) -> bool:
        """Wait until `ready()`; False when the job has ended before, or the time is up."""
        assert self._process is not None
        while not ready():
            if self._process.poll() is not None or self.seconds > self._limit:
                return ready()
            time.sleep(_LOOK)
        return True

    # --- looking at it ----------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def status(self) -> Mapping[str, Any]:
        """What the supervisor says; nothing while it does not listen."""
        try:
            return ask(memory_dir(self.spec.job_id) / SOCKET, {"do": "status"})
        except (OSError, ValueError):
            return {}

    def step(self) -> int:
        """The newest step that all ranks have completed; -1 before."""
        ranks = self.status().get("ranks", [])
        self.longest_step = max([self.longest_step, *(rank["step_seconds"] or 0.0 for rank in ranks)])
        return min((rank["step"] for rank in ranks), default=-1)

    def unattached(self, steps: int) -> bool:
        """Whether so many optimizer steps were seen of ranks that do not say theirs."""
        ranks = self.status().get("ranks", [])
        return bool(ranks) and all(rank["step"] < 0 and rank["seen"] >= steps for rank in ranks)

    def pids(self) -> list[int]:
        """The ranks' processes. Raises _TrialError when the job does not answer."""
        found = [rank["pid"] for rank in self.status().get("ranks", [])]
        if not found:
            raise _TrialError("the supervisor does not answer")
        return found

    def saver(self) -> psutil.Process:
        """The process that writes checkpoints. Raises _TrialError."""
        assert self._process is not None
        for child in psutil.Process(self._process.pid).children():
            if any(word.endswith("ftlaunch.checkpoints.saver") for word in child.cmdline()):
                return child
        raise _TrialError("there is no saver")

    def events(self, *names: str) -> list[Mapping[str, Any]]:
        """Events of the journal with these names."""
        try:
            return [event for event in runs.load(self.spec.run_dir).events if event["event"] in names]
        except CannotFind:
            return []

    def committed(self, step: int) -> bool:
        """Whether a step is on storage."""
        self.step()
        return self.checkpoint(step).is_dir()

    def checkpoint(self, step: int) -> Path:
        """Where a step lies on storage."""
        return layout.iteration_dir(self.spec.checkpoint_dir, step)

    def what_happened(self) -> str:
        """Why it is not where it should be."""
        assert self._process is not None
        for event in reversed(self.events("job_failed", "job_finished", "job_stopped", "incident")):
            if event["event"] == "job_finished":
                return "the job was over before"
            return str(event.get("sentence") or event["event"])
        code = self._process.poll()
        return f"not done after {self.seconds:.0f} s" if code is None else f"ftlaunch ended with exit code {code}"
