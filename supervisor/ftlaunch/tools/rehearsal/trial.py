"""One run of the job, on trial: started, watched and ended."""

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

_LOOK = 0.02  # seconds between looks at a job
FAST_LOOK = 0.002  # the same at its pages, to hit a moment between two steps


def _heeding(parent: int) -> Callable[[], None]:
    """For a preexec_fn: SIGINT, which ends a trial, is heard again. A shell makes background processes ignore it."""
    die_too = processes.dies_with(parent)

    def heed() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        die_too()

    return heed


class TrialError(Exception):
    """The job did not survive; the message says how."""


class Trial:
    """One run, ended and cleaned up behind at the end of the `with` block."""

    def __init__(self, spec: JobSpec, limit: float, advance: Advance = ignore) -> None:
        """limit: seconds. advance: told of steps that all ranks have completed."""
        self.spec, self._limit, self._advance = spec, limit, advance
        self._reached = 0  # the newest of those steps
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self.longest_step = 0.0
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
        """Start the job, or go on with it."""
        command = module("ftlaunch", str(self.spec.run_dir / "job.yaml"))
        with (self.spec.run_dir / "terminal.log").open("ab") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=_heeding(os.getpid()),  # noqa: PLW1509
            )

    def stop(self) -> int:
        """Tell the job to stop; returns its exit code."""
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

    def wait(self, ready: Callable[[], bool], every_seconds: float = _LOOK) -> bool:
        """Wait until `ready()`; False when the job has ended before, or the time is up."""
        assert self._process is not None
        while not ready():
            if self._process.poll() is not None or self.seconds > self._limit:
                return ready()
            time.sleep(every_seconds)
        return True

    # --- looking at it ----------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def status(self) -> Mapping[str, Any]:
        """The supervisor's status; empty while it does not listen."""
        try:
            return ask(memory_dir(self.spec.job_id) / SOCKET, {"do": "status"})
        except (OSError, ValueError):
            return {}

    def step(self) -> int:
        """The newest step that all ranks have completed; -1 before."""
        ranks = self.status().get("ranks", [])
        self.longest_step = max([self.longest_step, *(rank["step_seconds"] or 0.0 for rank in ranks)])
        step = min((rank["step"] for rank in ranks), default=-1)
        if step > self._reached:
            self._advance(step - self._reached)
            self._reached = step
        return step

    def front(self) -> tuple[int, Phase] | None:
        """Return the newest step that all ranks have completed, and what the last rank does; None before they attach.

        It is read from the pages of the ranks, which takes microseconds.
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
        """Whether so many optimizer steps were seen of ranks that do not say theirs."""
        ranks = self.status().get("ranks", [])
        return bool(ranks) and all(rank["step"] < 0 and rank["seen"] >= steps for rank in ranks)

    def pids(self) -> list[int]:
        """The ranks' processes. Raises TrialError when the job does not answer."""
        found = [rank["pid"] for rank in self.status().get("ranks", [])]
        if not found:
            raise TrialError("the supervisor does not answer")
        return found

    def saver(self) -> psutil.Process:
        """The process that writes checkpoints. Raises TrialError."""
        assert self._process is not None
        for child in psutil.Process(self._process.pid).children():
            if any(word.endswith("ftlaunch.checkpoints.saver") for word in child.cmdline()):
                return child
        raise TrialError("there is no saver")

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
        """What the job says about its trouble."""
        assert self._process is not None
        for event in reversed(self.events("job_failed", "job_finished", "job_stopped", "incident")):
            if event["event"] == "job_finished":
                return "the job was over before"
            return str(event.get("sentence") or event["event"])
        code = self._process.poll()
        return f"not done after {self.seconds:.0f} s" if code is None else f"ftlaunch ended with exit code {code}"
