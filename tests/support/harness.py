"""Runs ftlaunch on real jobs, waits on conditions, and makes sure that nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftlaunch.history.journal import read_events
from ftlaunch.system.control_socket import SOCKET, ask
from ftlaunch_contract.protocol import memory_root
from tests.support.leftovers import carriers, mark
from tests.support.stacks import stacks_of
from tests.support.waiting import DEADLINE, wait_for

JOBS = Path(__file__).parents[1] / "jobs"
TINY = JOBS / "tiny.py"
# Scripts of tests/jobs whose imports the module `quick` does ahead, so that a warm parent needs no more.
QUICK = (
    "augmented.py",
    "blocked.py",
    "data.py",
    "hangs.py",
    "leaves_early.py",
    "own_loop.py",
    "phases.py",
    "proved.py",
    "segments.py",
    "slow.py",
    "split.py",
    "tiny.py",
    "uneven.py",
    "unmodified.py",
    "unseeded.py",
    "unsound.py",
)
BARE = ("blocked.py", "phases.py", "slow.py", "unmodified.py")  # scripts that never attach
ATTACH = tuple(name for name in QUICK if name not in BARE)  # scripts that import the hooks
ATTACHED = "quick,ftlaunch_hooks.job.attaching,ftlaunch_hooks.observe.forward_passes"  # what they preload
WITH_TORCH = (*QUICK, "rlhf.py", "shapes.py", "warm_ends.py", "warm_probe.py")


class FtJob:
    """One job in a directory of its own, with its folders, the processes of its supervisors, and its journal."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.job_id = f"test-{mark()}-{uuid.uuid4().hex[:8]}"
        self.run_dir = home / "run"
        self.out = home / "out"
        self.memory = memory_root(os.getuid()) / self.job_id
        self.tag = f"FT_TEST={self.job_id}"
        self.module = "ftlaunch"
        """the module that `python -m` runs"""
        self.python: str | None = None  # the interpreter; None is that of the tests
        self.supervisors: list[subprocess.Popen[str]] = []

    def start(
        self, *options: str, script: Path | str = TINY, args: tuple[str, ...] | None = None,
        env: Mapping[str, str] | None = None, ranks: int = 2, script_asks: bool = False, **popen: Any,
    ) -> subprocess.Popen[str]:  # fmt: skip
        """Start `ftlaunch`.

        Unless `options` say otherwise, a snapshot is taken at every step, no report page is written, and no resume is
        verified: most tests count the repeated steps, and verifying repeats more.

        Args:
            options: options of ftlaunch.
            script: the script, or a job spec.
            args: arguments of the script; None is those of tiny.py.
            env: variables in addition to the environment of the test.
            ranks: the number of ranks.
            script_asks: whether the script itself says how often snapshots are taken, instead of an option.
            popen: further arguments of Popen.
        """
        words = ("--out", str(self.out)) if args is None else args
        every = () if script_asks else ("--memory-interval", "1")
        defaults = ("--no-report-page", "--verify-resume", "off")
        options = (*_how(script, options, ranks), *_patience(options), *every, *defaults, *options)
        command = [
            self.python or sys.executable, "-m", self.module, "--nproc-per-node", str(ranks), "--job-id", self.job_id,
            "--run-dir", str(self.run_dir), *options, str(script), *words,
        ]  # fmt: skip
        name, _, value = self.tag.partition("=")
        number = len(self.supervisors)
        streams: dict[str, Any] = {
            "stdout": (self.home / f"stdout_{number}").open("w"),
            "stderr": (self.home / f"stderr_{number}").open("w"),
        }
        process = subprocess.Popen(
            command,
            cwd=self.home,
            text=True,
            env={**os.environ, name: value, **(env or {})},
            **(streams | popen),
        )
        self.supervisors.append(process)
        return process

    @property
    def supervisor(self) -> subprocess.Popen[str]:
        """The supervisor that was started last."""
        return self.supervisors[-1]

    def wait(self, seconds: float = DEADLINE) -> int:
        """Wait for the supervisor's end; return its exit code."""
        try:
            return self.supervisor.wait(seconds)
        except subprocess.TimeoutExpired:
            stacks = stacks_of(carriers(self.tag))
            raise AssertionError(f"the supervisor did not end:\n{self.stderr}\n{self.journal_text}\n{stacks}") from None

    @property
    def stderr(self) -> str:
        return (self.home / f"stderr_{len(self.supervisors) - 1}").read_text()

    @property
    def stdout(self) -> str:
        return (self.home / f"stdout_{len(self.supervisors) - 1}").read_text()

    @property
    def journal_text(self) -> str:
        path = self.run_dir / "events.jsonl"
        return path.read_text() if path.exists() else ""

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the journal's events of one name."""
        try:
            return [event for event in read_events(self.run_dir) if event["event"] == name]
        except FileNotFoundError:
            return []

    def wait_event(self, name: str, count: int = 1, seconds: float = DEADLINE) -> dict[str, Any]:
        """Wait for the `count`-th event of a name; return the event."""

        def there() -> dict[str, Any] | None:
            events = self.events(name)
            if len(events) >= count:
                return events[count - 1]
            assert self.supervisor.poll() is None or len(self.events(name)) >= count, (
                f"the supervisor ended ({self.supervisor.returncode}) without {name}:\n{self.stderr}"
            )
            return None

        return wait_for(there, f"event {name} no. {count}", seconds)

    def wait_warm(self, state: str) -> dict[str, Any]:
        """Wait until the warm parent was in a state; return the last such event."""

        def there() -> list[dict[str, Any]]:
            assert self.supervisor.poll() is None, f"the supervisor ended:\n{self.stderr}"
            return [event for event in self.events("warm_parent") if event["state"] == state]

        return wait_for(there, f"a warm parent that is {state}")[-1]

    def status(self) -> dict[str, Any] | None:
        try:
            return ask(self.memory / SOCKET, {"do": "status"})
        except (OSError, ValueError):
            return None

    def wait_step(self, step: int) -> dict[str, Any]:
        """Wait until all ranks have completed `step` steps; return the status at that moment."""

        def reached() -> dict[str, Any] | None:
            status = self.status()
            if status and status["ranks"] and all(rank["step"] >= step for rank in status["ranks"]):
                return status
            assert self.supervisor.poll() is None, f"the supervisor ended:\n{self.stderr}"
            return None

        return wait_for(reached, f"step {step}")

    def pids(self) -> list[int]:
        """Return the pids of the ranks of the newest attempt."""
        return list(self.wait_event("attempt_started", len(self.events("attempt_started")) or 1)["pids"])

    def losses(self, rank: int = 0) -> dict[int, str]:
        """Return the exact loss of each step; check that a repeated step had the same loss."""
        losses: dict[int, str] = {}
        for line in (self.out / f"loss_{rank}.csv").read_text().splitlines():
            step, loss = line.split()
            assert losses.setdefault(int(step), loss) == loss, f"step {step} was made twice, differently"
        return losses

    def fired(self) -> list[str]:
        path = self.out / "fired"
        return path.read_text().splitlines() if path.exists() else []

    def final(self) -> list[str]:
        """Return the digests of all ranks' final states."""
        return [path.read_text() for path in sorted(self.out.glob("final_*"))]

    def log(self, attempt: int, rank: int) -> str:
        return (self.run_dir / "logs" / f"attempt_{attempt}" / f"rank_{rank}.log").read_text()

    def assert_clean(self) -> None:
        """Check that no process of the job and nothing in /dev/shm is left, and that no resume differed."""
        wait_for(lambda: not carriers(self.tag), "the end of all processes of the job", 10.0)
        assert not self.memory.exists(), f"left behind: {list(self.memory.iterdir())}"
        assert not self.events("resume_differs"), self.stderr

    def dispose(self) -> None:
        """Kill all processes and delete all memory that the test has left."""
        for process in self.supervisors:
            if process.poll() is None:
                process.kill()
                process.wait()
        for pid in carriers(self.tag):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.memory, ignore_errors=True)


def _patience(options: tuple[str, ...]) -> tuple[str, ...]:
    """Return longer limits for the start and the end of ranks in a job with a short hang timeout.

    On a busy machine start and end take longer than a test that waits for hangs gives to a step.
    """
    is_soon = "--hang-timeout" in options and "--no-python" not in options
    return ("--startup-timeout", "10m", "--teardown-timeout", "1m") if is_soon else ()


def _how(script: Path | str, options: tuple[str, ...], ranks: int) -> tuple[str, ...]:
    """Return options that start the ranks with the least processor time; options of the test come later and win.

    A warm parent pays if several ranks are forked from it, and if it imports no more than the ranks need.
    """
    name = Path(script).name
    if "--preload" in options and "FT_TEST_PLAIN" not in os.environ:
        return ()
    if "FT_TEST_PLAIN" in os.environ or name not in WITH_TORCH or (ranks == 1 and "--warm" not in options):
        return ("--no-warm",)
    if name not in QUICK or "--no-warm" in options:
        return ()
    return ("--preload", ATTACHED if name in ATTACH else "quick")
