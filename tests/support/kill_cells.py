"""The cells of the kill matrix: a job on two machines, with a third standing by, that is held at a chosen moment."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from ftlaunch.system.control_socket import SOCKET, ask
from ftlaunch_contract.checkpoint import layout, tensor_file, verify
from ftlaunch_contract.protocol import memory_root
from tests.support.harness import JOBS
from tests.support.leftovers import mark
from tests.support.machines import Machine, Machines, NodesJob
from tests.support.waiting import wait_for

NODES = 2
MACHINES = 3
STEPS = 40
STEP_TIME = 0.02  # seconds
SAVED_EVERY = 8  # steps
DEADLINE = 60.0  # seconds in which a disturbed job must end
MOMENTS = {  # name -> the place in chain.py where the ranks wait, and the step
    "start": ("start", 0),
    "step": ("step", 12),
    "snapshot": ("snapshot", 13),
    "commit": ("commit", 38),  # the saver waits in its second commit
    "stop": ("step", 12),
    "end": ("end", 0),
}
_PAUSES = Path(__file__).parent / "pauses"
_OPTIONS = (
    "--grace", "6s", "--memory-interval", "1", "--storage-interval", str(SAVED_EVERY), "--backoff-first", "100ms",
    "--hang-timeout", "8s", "--startup-timeout", "20s", "--teardown-timeout", "6s", "--exit-timeout", "6s",
    "--max-restarts", "6",
)  # fmt: skip


def states_of(steps: int) -> list[list[str]]:
    """Return the states of all ranks of an undisturbed chain.py after each step, as hexadecimal digits."""
    states_by_step = [[bytes(32)] * NODES]
    for step in range(1, steps + 1):
        everything = b"".join(states_by_step[-1])
        states_by_step.append([hashlib.sha256(b"%d %d " % (rank, step) + everything).digest() for rank in range(NODES)])
    return [[state.hex() for state in states] for states in states_by_step]


class CellJob(NodesJob):
    """A job of chain.py with one rank on each of two machines."""

    def __init__(self, machines: Machines, home: Path, moment: str, *, warm: bool) -> None:
        """Prepare the job.

        Args:
            machines: the machines, of which the last stands by.
            home: a directory for files.
            moment: a key of MOMENTS, at which the job is held.
            warm: whether ranks are forked from a warm parent.
        """
        self.out = home / "out"
        self.made = machines
        self._moment = moment
        self.out.mkdir(parents=True)
        where, step = MOMENTS[moment]
        script = (JOBS / "chain.py", self.out, STEPS, STEP_TIME, where, step)
        command = [*_OPTIONS, "--warm" if warm else "--no-warm", *map(str, script)]
        name = f"cell-{mark()}-{uuid.uuid4().hex[:4]}"
        super().__init__(machines.all, home, name, NODES, command, ranks=1)

    def start_all(self, env: dict[str, str] | None = None) -> None:
        """Start the agents of both nodes."""
        for number in range(NODES):
            self.start(number, "--node-rank", str(number), env=env)

    def reach(self) -> None:
        """Start all agents, and wait until the job is held at its moment."""
        pause = {"PAUSE_COMMIT": f"{self.out} 2", "PYTHONPATH": str(_PAUSES)} if self._moment == "commit" else {}
        self.start_all(pause)
        self.wait_event("attempt_started")
        self.start(NODES, env=pause)
        self.wait(lambda: "joined:" in self.said(NODES), "the agent that stands by")
        (self.out / "ready").touch()
        awaited = ["at_commit"] if self._moment == "commit" else [f"at_{rank}" for rank in range(NODES)]
        self.wait(lambda: all((self.out / name).exists() for name in awaited), f"the moment `{self._moment}`")
        if self._moment == "stop":
            assert self.ask_head({"do": "stop", "why": "the kill matrix"})["ok"]
            self.wait_event("stop_announced")

    def go_on(self) -> None:
        """Let the job go on, in this attempt and in all later ones."""
        (self.out / "go").touch()

    @property
    def is_held(self) -> bool:
        """Whether the job is still held at its moment."""
        ended = any(self.events(name) for name in ("job_finished", "job_stopped", "job_failed", "incident"))
        return not (self.out / "go").exists() and not ended

    # --- what is asked, and waited for ------------------------------------------------------------------------

    def ask_head(self, request: dict[str, Any]) -> dict[str, Any]:
        """Ask the head; return its answer, or an empty dictionary."""
        for machine in self.machines:
            with contextlib.suppress(OSError, ValueError, IndexError):
                memory = Path(self.events("job_started")[-1]["memory_dir"])
                return ask(machine.path(memory / SOCKET), request)
        return {}

    def wait(self, ready: Any, what: str, seconds: float = DEADLINE) -> Any:
        """Wait as `wait_for` does, and add all output to the message if the wait is in vain."""
        try:
            return wait_for(ready, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.transcript()}") from None

    def wait_event(self, name: str, count: int = 1) -> dict[str, Any]:
        """Wait for the `count`-th event of a name; return the event."""
        return dict(self.wait(lambda: self.events(name)[count - 1 : count], f"{name} no. {count}")[0])

    def codes(self, *numbers: int) -> set[int | None]:
        """Wait until the agents of some machines have ended; return their exit codes."""
        agents = [self.agents[number] for number in numbers]
        left = [number for number in numbers if self.agents[number].poll() is None]
        self.wait(lambda: all(agent.poll() is not None for agent in agents), f"the ends of the agents of {left}")
        return {agent.poll() for agent in agents}

    def transcript(self) -> str:
        """Return all output and the journal, for the message of a failing test."""
        output = "".join(f"--- machine {number}:\n{self.said(number)}" for number in self.agents)
        journal = self.run_dir / "events.jsonl"
        return output + (journal.read_text() if journal.exists() else "")

    # --- its processes ----------------------------------------------------------------------------------------

    def victim(self, what: str) -> int:
        """Return the pid, on the host, of a process of the job.

        Args:
            what: `head`, `saver`, `agent`, `rank`, `warm parent` or `node's saver`; all but the first two on machine 1.
        """
        if what == "head":
            return self._head()
        if what == "saver":
            return self._child(self._head(), "ftlaunch.checkpoints.saver")
        agent = int(self.agents[1].pid)  # type: ignore[attr-defined]
        if what == "agent":
            return agent
        words = {"rank": str(JOBS / "chain.py"), "warm parent": "fork_server.py", "node's saver": "checkpoints.saver"}
        return self._child(agent, words[what])

    def _head(self) -> int:
        pid_there = self.events("job_started")[-1]["pid"]
        return next(pids[pid_there] for pids in [self.made[0].processes()])

    @staticmethod
    def _child(parent: int, word: str) -> int:
        """Return the child whose command contains a word; a rank is also recognised by its variable RANK."""
        for child in psutil.Process(parent).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                is_rank = "RANK" in child.environ()
                if any(word in part for part in child.cmdline()) and is_rank == word.endswith("chain.py"):
                    return int(child.pid)
        raise AssertionError(f"process {parent} has no child of {word}")

    # --- what must be true at the end -------------------------------------------------------------------------

    def assert_right_states(self) -> None:
        """Check that each step, each final state and each checkpoint holds what the undisturbed run has."""
        right = states_of(STEPS)
        for rank in range(NODES):
            for line in (self.out / f"states_{rank}").read_text().splitlines():
                step, state = line.split()
                assert state == right[int(step)][rank], f"rank {rank}, step {step}\n{self.transcript()}"
            assert (self.out / f"final_{rank}").read_text() == right[STEPS][rank], self.transcript()
        self.assert_whole_checkpoints()

    def assert_whole_checkpoints(self) -> None:
        """Check that each checkpoint verifies, and that all its parts are of one step."""
        right = states_of(STEPS)
        for step, directory in layout.list_iterations(self.run_dir / "checkpoints"):
            assert verify.verify(directory)["world_size"] == NODES
            for rank in range(NODES):
                (path,) = directory.glob(f"*-model-{rank:07d}-{NODES:07d}.safetensors")
                assert _state_in(path) == right[step][rank], f"{path}\n{self.transcript()}"

    def assert_nothing_left(self, *machines: Machine, but: Machine | None = None) -> None:
        """Check that no process is left on the machines, and nothing in memory.

        If a node was lost between the end of its ranks and the last save, the job is done, and the other nodes keep
        their memory.

        Args:
            machines: the machines to check.
            but: a machine whose agent was killed, and whose memory may be left.
        """
        kept = any(event["why"] == "end" for event in self.events("checkpoint_failed"))
        for machine in machines:
            self.wait(lambda: not machine.processes(), f"the end of all processes of {machine.name}", 10.0)  # noqa: B023
            root = machine.path(memory_root(0))
            left = sorted(path.name for path in root.iterdir()) if root.exists() else []
            assert left == [] or machine is but or kept, f"{machine.name} has {left} left\n{self.transcript()}"


def _state_in(path: Path) -> str:
    with path.open("rb") as file:
        _, (begin,), _ = tensor_file.read_header(file.fileno())
        file.seek(begin)
        return file.read(32).hex()


def hit(pid: int, signum: int) -> None:
    """Send a signal to a process, and wait for its effect: the end, or the stop for SIGSTOP."""
    process = psutil.Process(pid)
    os.kill(pid, signum)
    stopped = signum == signal.SIGSTOP

    def has_fired() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return process.status() == (psutil.STATUS_STOPPED if stopped else psutil.STATUS_ZOMBIE)
        return not stopped

    wait_for(has_fired, f"the effect of signal {signum} on process {pid}", 10.0)


@contextlib.contextmanager
def disposed(job: CellJob) -> Iterator[CellJob]:
    """Thaw all machines after the cell, so that their processes can end with the machines."""
    try:
        yield job
    finally:
        for machine in job.made.all:
            with contextlib.suppress(OSError):
                machine.thaw()
