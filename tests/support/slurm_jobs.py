"""The tiny job, submitted to a Slurm cluster by the unchanged recipes of configs/slurm."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from ftlaunch_contract.protocol import memory_root
from tests.support.harness import ATTACHED, TINY
from tests.support.machines import RANKS, Machine, NodesJob, result_of
from tests.support.slurm import Slurm
from tests.support.waiting import DEADLINE, wait_for

RECIPES = Path(__file__).parents[2] / "configs/slurm"
OPTIONS = ("--nproc-per-node", str(RANKS), "--memory-interval", "1", "--preload", ATTACHED)
NODES = 2
STEPS = 60
"""the steps of every job, which trains what four undisturbed ranks train"""
_STANDS_BY = "this node stands by"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "PREEMPTED"}


class SlurmJob(NodesJob):
    """One job of Slurm, whose run dir, journal and losses are read as those of any job of several nodes."""

    def __init__(self, slurm: Slurm, home: Path, run_dir: str = "runs/tiny") -> None:
        """Prepare the job. run_dir: the run dir, relative to `home`, in which the job is submitted."""
        super().__init__(slurm.nodes, home, "tiny", 0, ())
        self.slurm = slurm
        self.out = home / "out"
        self.run_dir = home / run_dir
        self.number = ""
        program = home / "bin/ftlaunch"  # the tested ftlaunch, whatever else is installed
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ftlaunch "$@"\n')
        program.chmod(0o755)

    def submit(
        self, recipe: str, *args: str, sbatch: tuple[str, ...] = (), options: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Submit a recipe by sbatch.

        Args:
            recipe: the name of a file in configs/slurm.
            args: arguments of tiny.py.
            sbatch: options of sbatch.
            options: options of ftlaunch.
            env: variables in addition to the environment of the test.
        """
        path = f"{self.home / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        command = [*OPTIONS, *options, str(TINY), "--out", str(self.out), "--steps", str(STEPS), *args]
        self.number = self.slurm.run(
            "sbatch", "--parsable", "--job-name=tiny", *sbatch, str(RECIPES / recipe), *command, cwd=self.home,
            env={"GLOO_SOCKET_IFNAME": "eth0", **(env or {}), "PATH": path},
        ).strip()  # fmt: skip

    @property
    def state(self) -> str:
        """The state of the job by Slurm's word."""
        return self.slurm.job(self.number)["JobState"]

    def wait_state(self, *states: str, seconds: float = DEADLINE) -> str:
        """Wait until the job is in one of some states; return that state."""
        return self._wait_explained(
            lambda: state if (state := self.state) in states else None, f"one of {states}", seconds
        )

    def wait_end(self, seconds: float = DEADLINE) -> tuple[str, str]:
        """Wait until Slurm says that the job is over; return its state and exit code."""
        state = self.wait_state(*ENDED, seconds=seconds)
        return state, self.slurm.job(self.number)["ExitCode"]

    def wait_event(self, name: str, count: int = 1, seconds: float = DEADLINE) -> dict[str, Any]:
        """Wait for the `count`-th event of a name in the journal; return the event."""
        return self._wait_explained(
            lambda: (self.events(name)[count - 1 : count] or [None])[0], f"{name} no. {count}", seconds
        )

    def wait_step(self, step: int) -> dict[int, int]:
        """Wait until all ranks have completed `step` steps; return each rank's pid on its machine."""
        return self._wait_explained(lambda: self.ranks_at(step), f"step {step}", DEADLINE)

    def wait_copied(self) -> None:
        """Wait until there is a copy of each rank's snapshot in the memory of another machine, too."""

        def copied() -> bool:
            roots = [node.path(memory_root(0)) for node in self.slurm.nodes]
            notes = [note for root in roots for note in root.glob("*/peers/*/*/copy.json")]
            return len({_rank_of(note) for note in notes} - {None}) == NODES * RANKS

        self._wait_explained(copied, "copies of all ranks", DEADLINE)

    def report(self) -> dict[str, Any]:
        """Return the report of the newest run."""
        content: dict[str, Any] = json.loads((self.run_dir / "report.json").read_text())
        return content

    def wait_standby(self) -> Machine:
        """Wait until a node stands by, in the first run of the job; return its machine."""

        def standing() -> Machine | None:
            logs = ((node, self.run_dir / f"node.{place}.log") for place, node in enumerate(self.slurm.nodes))
            return next((node for node, log in logs if log.exists() and _STANDS_BY in log.read_text()), None)

        return self._wait_explained(standing, "a node that stands by", DEADLINE)

    def worker(self, standby: Machine) -> Machine:
        """Return a node that trains, and that has neither the head nor the batch shell."""
        return next(node for node in self.slurm.nodes[1:] if node is not standby)

    def signal_agent(self, node: Machine, signum: int) -> None:
        """Send a signal to the agent of a node only."""
        begin = [sys.executable, "-m", "ftlaunch", "--run-dir"]
        found = [pid for pid in node.processes().values() if _command(pid)[: len(begin)] == begin]
        (agent,) = [pid for pid in found if _command(psutil.Process(pid).ppid())[0].endswith("bash")]  # not its helper
        os.kill(agent, signum)

    def _wait_explained(self, ready: Any, what: str, seconds: float) -> Any:
        try:
            return wait_for(ready, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.transcript}") from None

    @property
    def transcript(self) -> str:
        """The job's output, the journal, and Slurm's word, for the message of a failing test."""
        texts = [f"--- {path.name}\n{path.read_text(errors='replace')}" for path in sorted(self.home.glob("**/*.out"))]
        texts += [f"--- {path}\n{path.read_text()}" for path in sorted(self.home.glob("runs/*/*.[jl]*"))]
        return "\n".join([*texts, "--- Slurm", self.slurm.run("scontrol", "show", "job")])

    def result(self) -> Any:
        """Return the losses by rank and step, and the digests of the final states."""
        return result_of(self.out, NODES * RANKS)


class ApartSlurmJob(SlurmJob):
    """A job by a recipe of the guide, whose nodes have a /var/tmp and a working directory of their own."""

    def __init__(self, slurm: Slurm, home: Path) -> None:
        """Give the nodes their disks, and put the script on them. home: a directory for files, which is made."""
        super().__init__(slurm, home, "/var/tmp/runs/gpt")
        self._has_own_disks = True
        self.work = home / "work"
        """the directory in which the job runs"""
        self.work.mkdir()
        for node in slurm.nodes:
            node.own(Path("/var/tmp"))
            node.own(self.work)
            for script, name in ((TINY, "train.py"), (TINY.parent / "quick.py", "quick.py")):
                shutil.copy(script, node.path(self.work / name))

    def type(self, script: str, env: Mapping[str, str]) -> None:
        """Type the commands of a recipe in the repository. env: what the user's shell has besides."""
        path = f"{self.home / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environ = {"GLOO_SOCKET_IFNAME": "eth0", **env, "PATH": path}
        output = self.slurm.run("bash", "-c", script, cwd=RECIPES.parents[1], env=environ)
        self.number = output.removeprefix("Submitted batch job ").strip()

    def report(self) -> dict[str, Any]:
        """Return the report of the newest run, which the first node has."""
        content: dict[str, Any] = json.loads(self.slurm.nodes[0].path(self.run_dir / "report.json").read_text())
        return content

    @property
    def transcript(self) -> str:
        """The job's output, the journals, and Slurm's word, for the message of a failing test."""
        paths = [path for node in self.slurm.nodes for path in node.path(self.work).glob("*.out")]
        paths += [node.path(self.run_dir / "events.jsonl") for node in self.slurm.nodes]
        texts = [f"--- {path}\n{path.read_text(errors='replace')}" for path in paths if path.exists()]
        return "\n".join([*texts, "--- Slurm", self.slurm.run("scontrol", "show", "job")])


def _command(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return []


def _rank_of(note: Path) -> int | None:
    """Return whose snapshot a note is about; None if another note takes its place just now."""
    try:
        rank: int = json.loads(note.read_text())["rank"]
    except FileNotFoundError:
        return None
    return rank
