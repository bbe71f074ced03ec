"""One job, whose processes are killed at random moments."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import audit
import training
from supervisor import Supervisor

from ftlaunch.system.ports import free_port
from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.progress import Advance

RANKS = 2
_STUCK = 120.0  # seconds without a birth, a death or an end after which the job counts as hanging
_LIVES = 20  # lives without a kill after which ranks must be dying of something else
_POLL_SECONDS = 0.001  # between two readings of the journal
_FIRST_HORIZON = 0.4  # seconds
# What is killed, and how often: one rank, all ranks at about the same moment, the saver, the process that ranks are
# forked from, the supervisor (its ranks die with it, and the memory stays), and the node with all its memory.
TARGETS = {"rank": 52, "all ranks": 18, "saver": 12, "warm parent": 8, "supervisor": 7, "node": 3}


class Broken(Exception):
    """There is no sense in going on with the job; the message says why."""


@dataclass(frozen=True)
class Plan:
    """A kind of job."""

    kind: str  # a kind of training.JOBS
    size: str
    storage_interval: int  # steps between two saves
    keep: int  # checkpoints that are kept

    @property
    def name(self) -> str:
        """The name of the kind of job."""
        return f"{self.kind}-{self.size}"


def run_oracle(home: Path, kind: str, size: str, ranks: int = RANKS) -> Path:
    """Run the training undisturbed; return the folder with the digests of every step. Raises RuntimeError."""
    oracle = home / f"oracle_{kind}_{size}"
    oracle.mkdir()
    argv = [sys.executable, training.__file__, "--kind", kind, "--size", size, "--oracle", str(oracle)]
    env = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    env["MASTER_PORT"] = str(free_port("127.0.0.1"))
    with (oracle / "log").open("wb") as log:
        processes = [
            subprocess.Popen(argv, env={**env, "RANK": str(rank)}, stdout=log, stderr=log) for rank in range(ranks)
        ]
        codes = [process.wait() for process in processes]
    if any(codes):
        raise RuntimeError(f"cannot go on: the undisturbed run failed ({codes}):\n{(oracle / 'log').read_text()}")
    return oracle


class Mayhem:
    """A job from its start to its end."""

    def __init__(self, home: Path, number: int, plan: Plan, oracle: Path, dice: random.Random) -> None:
        """Start the job.

        Args:
            home: a folder.
            number: the number of the job.
            plan: the kind of job.
            oracle: the folder of the undisturbed run.
            dice: decides what is killed when.
        """
        self.out = home / f"job_{number}"
        self.plan = plan
        self.oracle = oracle
        self.dice = dice
        self.out.mkdir()
        self.job_id = f"chaos-{os.getpid()}-{number}"
        self.memory = protocol.memory_root(os.getuid()) / self.job_id
        self.checkpoints = self.out / "checkpoints"
        self.generation = 0
        self.wiped: dict[int, int] = {}
        self.tally = audit.Tally()
        self._audited: set[int] = set()  # the inodes of checkpoints that have been judged
        self._ranks: dict[int, int] = {}  # the ranks of the newest attempt: rank -> pid
        self._warm_parent = -1  # the pid of the warm parent
        self._attempt = -1
        self._lives_since_kill = 0
        self._horizon = _FIRST_HORIZON  # seconds of a life in which its kill comes
        self._ended: int | None = None  # the supervisor's exit code once it has ended
        self._supervisor = self._start()

    def _start(self) -> Supervisor:
        plan = self.plan
        self._attempt = -1
        self._ranks = {}
        self._warm_parent = -1
        argv = [
            "--nproc-per-node", str(RANKS), "--job-id", self.job_id, "--run-dir", str(self.out / "run"),
            "--checkpoint-dir", str(self.checkpoints), "--max-restarts", "1000000", "--hang-timeout", "off",
            "--max-same-error", "off", "--memory-interval", "1",
            "--grace", "5s", "--backoff-first", "1ms", "--backoff-max", "1ms", "--keep", str(plan.keep),
            "--storage-interval", str(plan.storage_interval), training.__file__, "--kind", plan.kind,
            "--size", plan.size, "--oracle", str(self.oracle), "--out", str(self.out),
        ]  # fmt: skip
        env = {**os.environ, "CHAOS_GENERATION": str(self.generation)}
        return Supervisor(argv, env, self.out / "supervisor.log", self.out / "run/events.jsonl")

    # --- from start to end --------------------------------------------------------------------------------

    def run(self, kills: int, until: float, advance: Advance) -> None:
        """Kill until the limits are reached, then let the job run to its end. Raises Broken.

        Args:
            kills: the largest number of kills.
            until: when to stop killing, in monotonic seconds.
            advance: called with the number of new kills.
        """
        while self._await_life():
            if self.tally.kills.total() >= kills or time.monotonic() >= until:
                self._await(lambda: False)
            elif not self._await(lambda: False, self.dice.uniform(0, self._horizon)):
                self._adapt()
                before = self.tally.kills.total()
                self._kill(self.dice.choices(list(TARGETS), list(TARGETS.values()))[0])
                advance(self.tally.kills.total() - before)
            if self._ended is not None:
                break
        if self._ended != 0:
            self.tally.problems.append(f"{self.out}: the supervisor ended with {self._ended}, see supervisor.log")
        if not self.tally.kills.total():
            self.tally.problems.append(f"{self.out}: it ended before anything was killed")
        self._supervisor.close()

    def _adapt(self) -> None:
        """Adjust, at a kill, how long kills may wait, so that about half of the lives get to train."""
        trained = (self.out / f"progress_{self.generation}.{self._attempt}_0").exists()
        self._horizon *= 0.9 if trained else 1.1

    def _await_life(self) -> bool:
        """Wait for an attempt with all its ranks; return False if the supervisor has ended."""
        self._await(lambda: len(self._ranks) == RANKS)
        return self._ended is None

    def _await(self, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait for `ready()` or the supervisor's end; return False after `seconds`. Raises Broken."""
        give_up = time.monotonic() + (_STUCK if seconds is None else seconds)
        while self._ended is None and not ready():
            left = give_up - time.monotonic()
            if left <= 0:
                if seconds is not None:
                    return False
                raise Broken("nothing happens any more; the ranks' stacks are in its logs")
            self._ended = self._supervisor.wait(min(left, _POLL_SECONDS))
            if self._read_events() and seconds is None:
                give_up = time.monotonic() + _STUCK
        return True

    def _read_events(self) -> bool:
        """Read new events; return whether ranks have been started. Raises Broken."""
        born = False
        for event in self._supervisor.events():
            if event["event"] == "warm_parent" and event["state"] == "ready":
                self._warm_parent = event["pid"]
            elif event["event"] == "attempt_started":
                born = True
                self._attempt = event["attempt"]
                self._ranks = dict(enumerate(event["pids"]))
                self.tally.lives += 1
                self._lives_since_kill += 1
        if self._lives_since_kill > _LIVES:
            raise Broken("its ranks die without being killed")
        if born and (self.out / training.DIFFERS).exists():
            raise Broken("a rank's state is not what it must be")
        return born

    # --- killing ------------------------------------------------------------------------------------------

    def _kill(self, target: str) -> None:
        self._lives_since_kill = 0
        if target == "saver":
            victims = self._supervisor.children("ftlaunch.checkpoints.saver")
        elif target == "warm parent":
            victims = [self._warm_parent]
            self._warm_parent = -1  # unknown until the next warm parent reports that it is ready
        elif target == "rank":
            victims = [self.dice.choice(list(self._ranks.values()))]
        else:
            victims = list(self._ranks.values())
            self.dice.shuffle(victims)
        if target in ("supervisor", "node"):
            self._kill_supervisor(target == "node")
            self.tally.kills[target] += 1
            return
        landed = 0
        for pid in victims:
            landed += _kill(pid)
            time.sleep(self.dice.choice((0.0, 0.0, 0.001, 0.005)))
        self.tally.kills[target] += bool(landed)
        if target in ("rank", "all ranks") and landed:
            self._ranks = {}  # a new attempt follows

    def _kill_supervisor(self, node: bool) -> None:
        all_else = self._supervisor.children() if node else []
        _kill(self._supervisor.pid)
        for pid in all_else:
            _kill(pid)
        self._await(lambda: False)
        self._ended = None
        self._supervisor.close()
        self.generation += 1
        if node:
            _reap_all()
            self._audit_checkpoints()
            self.wiped[self.generation] = max((step for step, _ in layout.list_iterations(self.checkpoints)), default=0)
            shutil.rmtree(self.memory)
        self._supervisor = self._start()

    # --- judging ------------------------------------------------------------------------------------------

    def judge(self) -> audit.Tally:
        """Judge the job after its end; return its counts."""
        tally = self.tally
        _reap_all()
        if self.memory.exists():
            tally.problems.append(f"{self.memory} was left behind, and is now in {self.out}")
            self._keep_memory()
        lives = audit.read_lives(self.out, RANKS, tally)
        audit.judge_lives(self.out, lives, self.wiped, tally)
        audit.judge_logs(self.out, tally)
        self._audit_checkpoints()
        return tally

    def _audit_checkpoints(self) -> None:
        found = {path.stat().st_ino: path for _, path in layout.list_iterations(self.checkpoints)}
        new = [path for inode, path in found.items() if inode not in self._audited]
        self._audited |= set(found)
        self.tally.audited += len(new)
        self.tally.problems += audit.judge_checkpoints(new, self.oracle, self.plan.kind, self.plan.size)
        self.tally.problems += audit.judge_quarantine(self.checkpoints)

    def _keep_memory(self) -> None:
        """Move the job's memory to its folder as evidence, without sockets, which cannot be copied."""
        shutil.copytree(self.memory, self.out / "memory", ignore=_sockets)
        shutil.rmtree(self.memory)

    def abandon(self) -> audit.Tally:
        """Ask all ranks for their stacks, then kill everything; return the counts. Everything on disk is kept."""
        for pid in self._ranks.values():
            if _alive(pid):
                os.kill(pid, protocol.STACKS_SIGNAL)
        time.sleep(1.0)  # the ranks write their stacks
        if self._ended is None:
            for pid in [*self._supervisor.children("ftlaunch.checkpoints.saver"), self._supervisor.pid]:
                _kill(pid)
        _reap_all()
        if self.memory.exists():
            self._keep_memory()
        audit.read_lives(self.out, RANKS, self.tally)
        return self.tally


def _sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_socket()]


def _kill(pid: int) -> bool:
    """Kill a process by SIGKILL; return whether it was alive."""
    if not _alive(pid):
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it ended meanwhile
        return False
    return True


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _reap_all() -> None:
    """Wait for all adopted processes: what dead supervisors have left ends by itself, or has been killed."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
