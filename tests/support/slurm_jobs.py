"""The tiny job, submitted to a Slurm cluster by the recipes of configs/slurm as they stand."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.support.harness import ATTACHED, TINY
from tests.support.machines import RANKS, Machine, NodesJob, result_of
from tests.support.slurm import Slurm
from tests.support.waiting import DEADLINE, wait_for

RECIPES = Path(__file__).parents[2] / "configs/slurm"
OPTIONS = ("--nproc-per-node", str(RANKS), "--memory-interval", "1", "--preload", ATTACHED)
NODES, STEPS = 2, 60
"""of every job: each trains what four undisturbed ranks train"""
_STANDS_BY = "this node stands by"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "PREEMPTED"}


class SlurmJob(NodesJob):
    """One job of Slurm. Its run dir, its journal and its losses are read as those of any job of several nodes."""

    def __init__(self, slurm: Slurm, home: Path, run_dir: str = "runs/tiny") -> None:
        """run_dir: as it is seen from `home`, in which the job is submitted."""
        super().__init__(slurm.nodes, home, "tiny", 0, ())
        self.slurm, self.out, self.run_dir, self.number = slurm, home / "out", home / run_dir, ""
        program = home / "bin/ftlaunch"  # the one that is tested, whatever else is installed
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ftlaunch "$@"\n')
        program.chmod(0o755)

    def submit(
        self, recipe: str, *args: str, sbatch: tuple[str, ...] = (), options: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Give a recipe to sbatch. args: of tiny.py; options: of ftlaunch."""
        path = f"{self.home / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        command = [*OPTIONS, *options, str(TINY), "--out", str(self.out), "--steps", str(STEPS), *args]
        self.number = self.slurm.run(
            "sbatch", "--parsable", "--job-name=tiny", *sbatch, str(RECIPES / recipe), *command, cwd=self.home,
            env={"GLOO_SOCKET_IFNAME": "eth0", **(env or {}), "PATH": path},
        ).strip()  # fmt: skip

    @property
    def state(self) -> str:
        """What Slurm says of the job."""
        return self.slurm.job(self.number)["JobState"]

    def wait_state(self, *states: str, seconds: float = DEADLINE) -> str:
        """Wait until the job is in one of these states."""
        return self._told(lambda: state if (state := self.state) in states else None, f"one of {states}", seconds)

    def wait_end(self, seconds: float = DEADLINE) -> tuple[str, str]:
        """State and exit code of the job, once Slurm says that it is over."""
        state = self.wait_state(*ENDED, seconds=seconds)
        return state, self.slurm.job(self.number)["ExitCode"]

    def wait_event(self, name: str, count: int = 1, seconds: float = DEADLINE) -> dict[str, Any]:
        """Wait for the `count`-th event of a name in the journal."""
        return self._told(lambda: (self.events(name)[count - 1 : count] or [None])[0], f"{name} no. {count}", seconds)

    def wait_step(self, step: int) -> dict[int, int]:
        """Wait until all ranks have made so many steps; rank -> pid on its machine."""
        return self._told(lambda: self.ranks_at(step), f"step {step}", DEADLINE)

    def report(self) -> dict[str, Any]:
        """What the head has said at the end of its newest run."""
        said: dict[str, Any] = json.loads((self.run_dir / "report.json").read_text())
        return said

    def wait_standby(self) -> Machine:
        """Wait until a node stands by, in the first run of the job; its machine."""

        def standing() -> Machine | None:
            logs = ((node, self.run_dir / f"node.{place}.log") for place, node in enumerate(self.slurm.nodes))
            return next((node for node, log in logs if log.exists() and _STANDS_BY in log.read_text()), None)

        return self._told(standing, "a node that stands by", DEADLINE)

    def worker(self, standby: Machine) -> Machine:
        """A node that trains, has not the head, and is not that of the batch shell."""
        return next(node for node in self.slurm.nodes[1:] if node is not standby)

    def signal_agent(self, node: Machine, signum: int) -> None:
        """Signal the agent of a node, and nothing else there."""
        begin = [sys.executable, "-m", "ftlaunch", "--run-dir"]
        found = [pid for pid in node.processes().values() if _command(pid)[: len(begin)] == begin]
        (agent,) = [pid for pid in found if _command(psutil.Process(pid).ppid())[0].endswith("bash")]  # not its helper
        os.kill(agent, signum)

    def _told(self, ready: Any, what: str, seconds: float) -> Any:
        try:
            return wait_for(ready, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told}") from None

    @property
    def told(self) -> str:
        """What the job has said, the journal, and Slurm's word: for a test that fails."""
        texts = [f"--- {path.name}\n{path.read_text(errors='replace')}" for path in sorted(self.home.glob("**/*.out"))]
        texts += [f"--- {path}\n{path.read_text()}" for path in sorted(self.home.glob("runs/*/*.[jl]*"))]
        return "\n".join([*texts, "--- Slurm", self.slurm.run("scontrol", "show", "job")])

    def result(self) -> Any:
        """Losses by rank and step, and the digests of the final states."""
        return result_of(self.out, NODES * RANKS)


def _command(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return []
