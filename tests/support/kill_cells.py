"""A job on two machines and one that stands by, held up at a moment: what each cell of the kill matrix is made of."""

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

NODES, MACHINES = 2, 3
STEPS, STEP_TIME, SAVED_EVERY = 40, 0.02, 8
DEADLINE = 60.0  # seconds in which a disturbed job ends
MOMENTS = {  # where ranks wait: a word of chain.py and a step
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
    """By step the states of all ranks of an undisturbed chain.py, as hexadecimal digits."""
    found = [[bytes(32)] * NODES]
    for step in range(1, steps + 1):
        everything = b"".join(found[-1])
        found.append([hashlib.sha256(b"%d %d " % (rank, step) + everything).digest() for rank in range(NODES)])
    return [[state.hex() for state in states] for states in found]


class CellJob(NodesJob):
    """A job of chain.py, with one rank on each machine."""

    def __init__(self, machines: Machines, home: Path, moment: str, *, warm: bool) -> None:
        self.out, self.made, self._moment = home / "out", machines, moment
        self.out.mkdir(parents=True)
        where, step = MOMENTS[moment]
        script = (JOBS / "chain.py", self.out, STEPS, STEP_TIME, where, step)
        command = [*_OPTIONS, "--warm" if warm else "--no-warm", *map(str, script)]
        name = f"cell-{mark()}-{uuid.uuid4().hex[:4]}"
        super().__init__(machines.all, home, name, NODES, command, ranks=1)

    def start_all(self, env: dict[str, str] | None = None) -> None:
        """The agents of both places."""
        for number in range(NODES):
            self.start(number, "--node-rank", str(number), env=env)

    def reach(self) -> None:
        """Start, and wait until the job is at its moment."""
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
        """The moment is over, for every attempt."""
        (self.out / "go").touch()

    @property
    def is_held(self) -> bool:
        """Whether the job is still at its moment."""
        ended = any(self.events(name) for name in ("job_finished", "job_stopped", "job_failed", "incident"))
        return not (self.out / "go").exists() and not ended

    # --- what is asked, and waited for ------------------------------------------------------------------------

    def ask_head(self, request: dict[str, Any]) -> dict[str, Any]:
        """The head's answer, or nothing."""
        for machine in self.machines:
            with contextlib.suppress(OSError, ValueError, IndexError):
                memory = Path(self.events("job_started")[-1]["memory_dir"])
                return ask(machine.path(memory / SOCKET), request)
        return {}

    def wait(self, ready: Any, what: str, seconds: float = DEADLINE) -> Any:
        """`wait_for`, with all that was said where it is in vain."""
        try:
            return wait_for(ready, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from None

    def wait_event(self, name: str, count: int = 1) -> dict[str, Any]:
        """Wait for the `count`-th event of a name."""
        return dict(self.wait(lambda: self.events(name)[count - 1 : count], f"{name} no. {count}")[0])

    def codes(self, *numbers: int) -> set[int | None]:
        """The exit codes of the agents of some machines, once all have ended."""
        agents = [self.agents[number] for number in numbers]
        left = [number for number in numbers if self.agents[number].poll() is None]
        self.wait(lambda: all(agent.poll() is not None for agent in agents), f"the ends of the agents of {left}")
        return {agent.poll() for agent in agents}

    def told(self) -> str:
        """All that was said and noted, for a test that fails."""
        said = "".join(f"--- machine {number}:\n{self.said(number)}" for number in self.agents)
        journal = self.run_dir / "events.jsonl"
        return said + (journal.read_text() if journal.exists() else "")

    # --- its processes ----------------------------------------------------------------------------------------

    def victim(self, what: str) -> int:
        """The pid on the host of a process of the job: of machine 1, but for the head and its saver."""
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
        there = self.events("job_started")[-1]["pid"]
        return next(found[there] for found in [self.made[0].processes()])

    @staticmethod
    def _child(parent: int, word: str) -> int:
        """A child by a word of its command; a forked rank is told by its variables instead."""
        for child in psutil.Process(parent).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                is_rank = "RANK" in child.environ()
                if any(word in part for part in child.cmdline()) and is_rank == word.endswith("chain.py"):
                    return int(child.pid)
        raise AssertionError(f"process {parent} has no child of {word}")

    # --- what must be true at the end -------------------------------------------------------------------------

    def assert_right_states(self) -> None:
        """Every step that was made, every final state, and everything in every checkpoint is the undisturbed run's."""
        right = states_of(STEPS)
        for rank in range(NODES):
            for line in (self.out / f"states_{rank}").read_text().splitlines():
                step, state = line.split()
                assert state == right[int(step)][rank], f"rank {rank}, step {step}\n{self.told()}"
            assert (self.out / f"final_{rank}").read_text() == right[STEPS][rank], self.told()
        self.assert_whole_checkpoints()

    def assert_whole_checkpoints(self) -> None:
        """Each one verifies, and is of one step."""
        right = states_of(STEPS)
        for step, directory in layout.list_iterations(self.run_dir / "checkpoints"):
            assert verify.verify(directory)["world_size"] == NODES
            for rank in range(NODES):
                (path,) = directory.glob(f"*-model-{rank:07d}-{NODES:07d}.safetensors")
                assert _state_in(path) == right[step][rank], f"{path}\n{self.told()}"

    def assert_nothing_left(self, *machines: Machine, but: Machine | None = None) -> None:
        """No process, and nothing in memory but on `but`, whose agent was killed.

        Where a node is lost between the end of its ranks and the last save, the job is done, and the others keep it.
        """
        kept = any(event["why"] == "end" for event in self.events("checkpoint_failed"))
        for machine in machines:
            self.wait(lambda: not machine.processes(), f"the end of all processes of {machine.name}", 10.0)  # noqa: B023
            root = machine.path(memory_root(0))
            left = sorted(path.name for path in root.iterdir()) if root.exists() else []
            assert left == [] or machine is but or kept, f"{machine.name} has {left} left\n{self.told()}"


def _state_in(path: Path) -> str:
    with path.open("rb") as file:
        _, (begin,), _ = tensor_file.read_header(file.fileno())
        file.seek(begin)
        return file.read(32).hex()


def hit(pid: int, signum: int) -> None:
    """Signal a process, and wait until it has taken effect."""
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
    """Whatever ends with the cell goes with its machines; what waits for its agents goes on, too."""
    try:
        yield job
    finally:
        for machine in job.made.all:
            with contextlib.suppress(OSError):
                machine.thaw()
