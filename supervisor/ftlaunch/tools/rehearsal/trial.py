"""Starts, observes and ends one run of the job for a rehearsal.

The job is a child process of `ftctl rehearse`. A trial asks the job's supervisor over the supervisor's socket, and
reads the job's journal, the pages of its ranks and its checkpoint directory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from ftlaunch.history import runs
from ftlaunch.history.runs import CannotFind
from ftlaunch.memory.directory import memory_dir, remove_memory
from ftlaunch.spec.job_spec import JobSpec, resolved
from ftlaunch.system import processes
from ftlaunch.system.control_socket import SOCKET, ask
from ftlaunch.system.own_modules import module
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.page import Page, open_pages
from ftlaunch_contract.progress import Advance, ignore
from ftlaunch_contract.protocol import Flag, Phase

_POLL_SECONDS = 0.02  # between two looks at a job
FAST_POLL_SECONDS = 0.002
"""seconds between two looks at the pages of a job's ranks, short enough to hit a moment between two steps"""


def _restore_interrupt(parent: int) -> Callable[[], None]:
    """Return a preexec_fn that restores SIGINT, which ends a trial, and lets the child die with `parent`.

    A shell makes its background processes ignore SIGINT, and children inherit that.
    """
    die_too = processes.dies_with(parent)

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        die_too()

    return prepare


class TrialError(Exception):
    """The job did not survive; the message says how."""


class Trial:
    """One run of the job. The end of the `with` block ends the job and removes its memory."""

    def __init__(self, spec: JobSpec, limit: float, advance: Advance = ignore) -> None:
        """Prepare a run; `start` starts the job.

        Args:
            spec: the job.
            limit: longest time of the run in seconds.
            advance: called with the number of steps that all ranks have completed since the last call.
        """
        self.spec = spec
        self._limit = limit
        self._advance = advance
        self._reached = 0  # newest step that `advance` was told about
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self.longest_step = 0.0
        """longest step seen, in seconds"""
        self._pages: list[Page] = []

    def __enter__(self) -> Trial:
        self._began = time.monotonic()
        self.spec.run_dir.mkdir(mode=0o700, parents=True)
        file = self.spec.run_dir / "job.yaml"
        asked = resolved(self.spec) | {"args": list(self.spec.launch.args), "env": dict(self.spec.launch.env)}
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump(asked, sort_keys=False))
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        with contextlib.suppress(FileNotFoundError):
            remove_memory(memory_dir(self.spec.job_id))

    # --- the job --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the job; after a stop, start it again."""
        command = module("ftlaunch", str(self.spec.run_dir / "job.yaml"))
        with (self.spec.run_dir / "terminal.log").open("ab") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=_restore_interrupt(os.getpid()),  # noqa: PLW1509
            )

    def stop(self) -> int:
        """Stop the job by SIGTERM. Return its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait()

    def _end(self) -> None:
        if self._process is None:
            return
        for _ in range(2):  # a second SIGINT ends the job at once
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(1.0)
        self._process.wait()

    def wait(self, ready: Callable[[], bool], every_seconds: float = _POLL_SECONDS) -> bool:
        """Wait until `ready()` is true. Return False if the job ended before, or the time limit has passed."""
        assert self._process is not None
        while not ready():
            if self._process.poll() is not None or self.seconds > self._limit:
                return ready()
            time.sleep(every_seconds)
        return True

    # --- observations -----------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Seconds since the begin of the trial."""
        return time.monotonic() - self._began

    def status(self) -> Mapping[str, Any]:
        """Return the supervisor's status; empty while the supervisor does not listen."""
        try:
            return ask(memory_dir(self.spec.job_id) / SOCKET, {"do": "status"})
        except (OSError, ValueError):
            return {}

    def step(self) -> int:
        """Return the newest step that all ranks have completed; -1 before the first."""
        ranks = self.status().get("ranks", [])
        self.longest_step = max([self.longest_step, *(rank["step_seconds"] or 0.0 for rank in ranks)])
        step = min((rank["step"] for rank in ranks), default=-1)
        if step > self._reached:
            self._advance(step - self._reached)
            self._reached = step
        return step

    def front(self) -> tuple[int, Phase] | None:
        """Return the newest step that all ranks have completed, and the last rank's phase; None before all attached.

        The values come from the pages of the ranks, which takes microseconds.
        """
        count = self.spec.launch.nproc
        if not self._pages:
            try:
                self._pages = open_pages(memory_dir(self.spec.job_id), count)
            except (OSError, ValueError):
                return None
        if not all(page.attempt >= 0 and page.flags & Flag.ATTACHED for page in self._pages):
            return None
        return min(page.step for page in self._pages), self._pages[-1].phase

    def unattached(self, steps: int) -> bool:
        """Return whether each rank made `steps` optimizer steps without reporting steps of its own."""
        ranks = self.status().get("ranks", [])
        return bool(ranks) and all(rank["step"] < 0 and rank["seen"] >= steps for rank in ranks)

    def pids(self) -> list[int]:
        """Return the pids of the ranks. Raises TrialError if the job does not answer."""
        found = [rank["pid"] for rank in self.status().get("ranks", [])]
        if not found:
            raise TrialError("the supervisor does not answer")
        return found

    def saver(self) -> psutil.Process:
        """Return the process that writes checkpoints. Raises TrialError if there is none."""
        assert self._process is not None
        for child in psutil.Process(self._process.pid).children():
            if any(word.endswith("ftlaunch.checkpoints.saver") for word in child.cmdline()):
                return child
        raise TrialError("there is no saver")

    def events(self, *names: str) -> list[Mapping[str, Any]]:
        """Return the events of the journal with the given names."""
        try:
            return [event for event in runs.load(self.spec.run_dir).events if event["event"] in names]
        except CannotFind:
            return []

    def committed(self, step: int) -> bool:
        """Return whether the checkpoint of a step is committed to storage."""
        self.step()
        return self.checkpoint(step).is_dir()

    def checkpoint(self, step: int) -> Path:
        """Return the directory of a step's checkpoint."""
        return layout.iteration_dir(self.spec.checkpoint_dir, step)

    def what_happened(self) -> str:
        """Return what the job's journal, or else its exit code, says about its trouble."""
        assert self._process is not None
        for event in reversed(self.events("job_failed", "job_finished", "job_stopped", "incident")):
            if event["event"] == "job_finished":
                return "the job was over before"
            return str(event.get("sentence") or event["event"])
        code = self._process.poll()
        return f"not done after {self.seconds:.0f} s" if code is None else f"ftlaunch ended with exit code {code}"
