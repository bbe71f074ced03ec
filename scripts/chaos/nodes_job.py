"""One job of three machines, whose processes and machines are killed at random moments."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import audit
import training
from mayhem import Broken, Plan

sys.path.append(str(Path(__file__).parents[1]))

from machines.job import NodesJob
from machines.namespaces import Machine, Machines

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.progress import Advance
from ftlaunch_contract.protocol import memory_root

RANKS = 3  # one on each of three machines
MACHINES = 4  # the fourth one stands by
_STUCK = 120.0  # seconds without an attempt or an end after which the job counts as hanging
_POLL_SECONDS = 0.02  # between two readings of the journal
_HORIZON = 1.5  # seconds in which a fault comes, from the last fault or from the moment at which all ranks run
_SURPRISE = 0.25  # the share of faults that do not wait for all ranks, and meet a restart
_LATE = 10.0  # seconds before the job's end in which an agent counts as late
_RETURN = 2.0  # the largest number of seconds after which a lost machine is back, as new
# What is killed, and how often. An agent's ranks die with it, and its machine keeps its memory; a machine is cut off
# and loses everything. Everything that is killed comes back.
TARGETS = {"rank": 30, "machine": 22, "agent": 14, "head": 10, "copier": 10, "saver": 8, "warm parent": 6}
_WORDS = {
    "copier": "ftlaunch.nodes.peers.copier",
    "saver": "ftlaunch.checkpoints.saver",
    "warm parent": "fork_server.py",
    "rank": training.__file__,
}
_AGENT = "\0--nnodes\0"  # in the command lines of agents, their starters and heads


class NodesMayhem:
    """A job from its start to its end."""

    def __init__(self, home: Path, number: int, plan: Plan, oracle: Path, dice: random.Random, made: Machines) -> None:
        """Start the job.

        Args:
            home: a folder.
            number: the number of the job.
            plan: the kind of job.
            oracle: the folder of the undisturbed run.
            dice: decides what is killed when.
            made: the machines.
        """
        self.out = home / f"job_{number}"
        self.plan = plan
        self.oracle = oracle
        self.dice = dice
        self._machines = made
        self.out.mkdir()
        self.tally = audit.Tally()
        self.asked_storage: Counter[str] = Counter()
        """what had been killed since the last restart -> the number of restarts from storage, or from nothing, then"""
        self._checkpoints = self.out / "run" / "checkpoints"
        options = [
            "--max-restarts", "1000000", "--hang-timeout", "off", "--max-same-error", "off", "--isolate-after", "off",
            "--memory-interval", "1", "--peer-interval", "1", "--grace", "5s", "--backoff-first", "1ms",
            "--backoff-max", "1ms", "--storage-interval", str(plan.storage_interval), "--keep", str(plan.keep),
            training.__file__, "--kind", plan.kind, "--size", plan.size, "--oracle", str(oracle),
            "--out", str(self.out),
        ]  # fmt: skip
        self._job = NodesJob(
            machines=made.all,
            home=self.out,
            name=f"chaos-{os.getpid()}-{number}",
            nodes=RANKS,
            command=options,
            ranks=1,
        )
        self._back: dict[int, float] = {}  # a machine that is away -> when it is back
        self._started: dict[int, float] = {}  # machine -> when its agent was started
        self._killed: list[tuple[float, str]] = []  # when, in the journal's seconds, and what
        for machine in range(MACHINES):
            self._start(machine)

    def _start(self, machine: int) -> None:
        self._started[machine] = time.monotonic()
        self._job.start(machine)

    # --- from start to end ------------------------------------------------------------------------------------

    def run(self, kills: int, until: float, advance: Advance) -> None:
        """Kill until the limits are reached, then let the job run to its end. Raises Broken.

        Args:
            kills: the largest number of kills.
            until: when to stop killing, in monotonic seconds.
            advance: called with the number of new kills.
        """
        self._await(self._runs)
        while not self._ended and self.tally.kills.total() < kills and time.monotonic() < until:
            if self.dice.random() > _SURPRISE:
                self._await(self._runs)
            moment = time.monotonic() + self.dice.uniform(0, _HORIZON)
            self._await(lambda: time.monotonic() > moment)  # noqa: B023 - it is called here
            if not self._ended and len(self._back) < MACHINES - 1:
                before = self.tally.kills.total()
                self._kill(self.dice.choices(list(TARGETS), list(TARGETS.values()))[0])
                advance(self.tally.kills.total() - before)
        self._await(lambda: False)
        self._await_agents()

    def _runs(self) -> bool:
        return self._job.ranks_at(0) is not None

    @property
    def _ended(self) -> bool:
        return bool(self._job.events("job_finished"))

    def _await(self, ready: Callable[[], bool]) -> None:
        """Wait for `ready()` or the job's end. Raises Broken."""
        lives = 0
        give_up = 0.0
        while not (ready() or self._ended):
            self._bring_back()
            now = len(self._job.events("attempt_started"))
            if now > lives or not give_up:
                lives = now
                give_up = time.monotonic() + _STUCK
            if (self.out / training.DIFFERS).exists():
                raise Broken("a rank's state is not what it must be")
            if time.monotonic() > give_up:
                raise Broken("nothing happens any more; see terminal_* and run/")
            if not self._back and all(agent.poll() is not None for agent in self._job.agents.values()):
                raise Broken("all agents have ended, and the job has not")
            time.sleep(_POLL_SECONDS)

    def _bring_back(self) -> None:
        for number in [number for number, when in self._back.items() if time.monotonic() >= when]:
            del self._back[number]
            self._machines[number].mend()
            self._start(number)

    def _await_agents(self) -> None:
        """Wait for the ends of all agents, but those that are away, whose deaths have been counted."""
        for number in self._back:
            self._machines[number].mend()
        codes = {number: self._code(number) for number in self._job.agents if number not in self._back}
        if set(codes.values()) != {0}:
            self.tally.problems.append(f"{self.out}: the agents ended with {codes}, see terminal_*")
        if not self.tally.kills.total():
            self.tally.problems.append(f"{self.out}: it ended before anything was killed")

    def _code(self, number: int) -> int | None:
        """Wait for an agent's end; return its exit code.

        An agent that came back at the job's end may wait for a job that starts over. Such an agent is killed, and
        counts as 0.
        """
        agent = self._job.agents[number]
        late = self._started[number] > self._finished - _LATE
        give_up = time.monotonic() + (_LATE if late else _STUCK)
        while agent.poll() is None and time.monotonic() < give_up:
            time.sleep(_POLL_SECONDS)
        if agent.poll() is None and late:
            self._machines[number].kill_all()
            return 0
        return agent.poll()

    @property
    def _finished(self) -> float:
        return float(self._job.events("job_finished")[0]["mono"])

    # --- killing ----------------------------------------------------------------------------------------------

    def _kill(self, target: str) -> None:
        here = [number for number in range(MACHINES) if number not in self._back]
        self.dice.shuffle(here)
        for number in here:
            now = time.monotonic()  # all machines share this clock
            if self._kill_on(self._machines[number], number, target):
                self._killed.append((now, f"{target} {number}"))
                with (self.out / "faults").open("a") as notes:
                    notes.write(f"{now:.3f} {target} on machine {number}\n")
                self.tally.kills[target] += 1
                return

    def _kill_on(self, machine: Machine, number: int, target: str) -> bool:
        """Kill a target on a machine; return whether the machine had one."""
        if target == "machine":
            machine.lose()
            shutil.rmtree(machine.path(memory_root(os.getuid())), ignore_errors=True)
        elif target == "agent":
            self._job.agents[number].send_signal(signal.SIGKILL)
        else:
            return any(_kill(pid) for pid in self._chosen(machine, target)[:1])
        self._job.agents[number].wait(_STUCK)
        self._back[number] = time.monotonic() + self.dice.uniform(0, _RETURN)
        return True

    def _chosen(self, machine: Machine, target: str) -> list[int]:
        """Return the pids, on the host, of a target on a machine.

        Forked ranks have the command line of the warm parent, so that ranks are recognised by the job's status. The
        status gives pids as each rank's own machine numbers them; on another machine the same number may belong to an
        agent.
        """
        there = machine.processes()
        ranks = {there[pid] for pid in (self._job.ranks_at(0) or {}).values() if pid in there}
        if target == "head":
            return [there[self._head]] if self._head in there else []
        commands = {pid: _command(pid) for pid in there.values()}
        found = [pid for pid, words in commands.items() if _WORDS[target] in words and _AGENT not in words]
        return [pid for pid in found if (pid in ranks) == (target == "rank")]

    @property
    def _head(self) -> int:
        """The pid that the head has on its own machine; on other machines the number may belong to something else."""
        return int(self._job.events("job_started")[-1]["pid"])

    # --- judging ----------------------------------------------------------------------------------------------

    def judge(self) -> audit.Tally:
        """Judge the job after its end; return its counts."""
        for machine in self._machines.all:
            left = sorted(path.name for path in machine.path(memory_root(os.getuid())).glob("*"))
            if left and machine.number not in self._back:
                self.tally.problems.append(f"{self.out}: {machine.name} has {left} left in memory")
            machine.kill_all()
            shutil.rmtree(machine.path(memory_root(os.getuid())), ignore_errors=True)
        audit.read_lives(self.out, RANKS, self.tally)
        self._judge_restarts()
        audit.judge_logs(self.out, self.tally)
        found = [path for _, path in layout.list_iterations(self._checkpoints)]
        self.tally.audited += len(found)
        self.tally.problems += audit.judge_checkpoints(found, self.oracle, self.plan.kind, self.plan.size)
        self.tally.problems += audit.judge_quarantine(self._checkpoints)
        return self.tally

    def _judge_restarts(self) -> None:
        """Count the sources of the restored states, and the lost steps, from the journal."""
        resumed = self._job.events("resumed")
        self.tally.lives += len(resumed)
        before = 0.0
        for event in resumed[1:]:
            source = event["source"] or "nothing"
            self.tally.restores[source] += 1
            self.tally.lost[source][-1 if event["steps_lost"] is None else event["steps_lost"]] += 1
            if source in ("storage", "nothing"):
                since = sorted(what for when, what in self._killed if before <= when < event["mono"])
                self.asked_storage[", ".join(since) or "nothing"] += 1
            before = event["mono"]

    def abandon(self) -> audit.Tally:
        """Kill everything; return the counts. Everything on disk is kept."""
        for machine in self._machines.all:
            machine.kill_all()
            machine.mend()
        return self.tally


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
