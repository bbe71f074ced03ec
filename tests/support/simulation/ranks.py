"""Ranks that only count, and their memory, which outlives them and their agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ftlaunch.nodes.cluster.membership.lineage import nodes_of
from ftlaunch_contract.pages import words
from ftlaunch_contract.protocol import Flag, Phase, Resume

if TYPE_CHECKING:
    from tests.support.simulation.machine import Machine

SLOTS = 3
MOST_SLOTS = 4  # with copies on other nodes
NEVER = 1 << 40
_ROWS = [int(row) for row in (words.ATTEMPT, words.STEP, words.BEAT, words.FLAGS, words.PHASE)]
_ROWS += [int(row) for row in (words.RESUMED_STEP, words.RESUMED_FROM)]
_ROWS += [int(words.SLOT_STEPS) + slot for slot in range(MOST_SLOTS)]
_ATTACHED, _LEFT, _STOPPED = int(Flag.ATTACHED), int(Flag.LOOP_LEFT), int(Flag.LOOP_LEFT | Flag.STOPPED)


class Memory:
    """What outlives ranks and agent: for each slot a step, and of which history it is."""

    def __init__(self) -> None:
        self.place = -1
        self.slots: list[tuple[int, str]] = []
        self.lineage = ""
        self.copies: dict[int, list[tuple[str, int, str]]] = {}
        """place -> lineage, step and history of copies that this node keeps for it"""
        self.rescued: dict[int, tuple[int, str]] = {}
        """place -> step and history of what was made again here for its saving"""

    def keep(self, step: int, history: str, copied_every: int = 0) -> None:
        """A snapshot; of those that are copied the two newest stay."""
        self.slots = [*self.slots, (step, history)]
        if not copied_every:
            self.slots = self.slots[-SLOTS:]
            return
        copied = [slot for slot in self.slots if slot[0] % copied_every == 0][-2:]
        free = [slot for slot in self.slots if slot not in copied]
        self.slots = sorted([*copied, *free[len(copied) - MOST_SLOTS :]])[-MOST_SLOTS:]


class Ranks:
    """Like AgentRanks: all ranks of the node as one."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.attempt, self.place, self.step, self.resumed = -1, -1, -1, -1
        self.nodes, self.stop_at, self.source = 0, NEVER, Resume.UNDECIDED
        self.alive = self.started = False
        self.cleared = True
        self.history = ""
        self._beats, self._beat_ns = 0, 0
        self._told: list[int] = []  # what was told of the pages, in the order of _ROWS
        self._next: Mapping[str, Any] | None = None
        self._life, self._killed = 0, -1

    @property
    def clearing(self) -> bool:
        """Whether all ranks have ended, and not all that they have left."""
        return not self.alive and not self.cleared

    # --- what the agent does ----------------------------------------------------------------------------------

    def spawn(self, message: Mapping[str, Any]) -> None:
        """Start."""
        if not self.cleared:
            self._next = message
            return
        machine, memory = self._machine, self._machine.memory
        kind, step, *_ = message["resume"]
        if memory.place != message["place"]["node"]:
            self._told = []
        self.attempt, self.place, self.nodes = message["attempt"], message["place"]["node"], message["place"]["nodes"]
        if memory.place != self.place or nodes_of(memory.lineage) != self.nodes:
            memory.slots = []
        memory.place, memory.lineage = self.place, message["lineage"]
        machine.copier.begin(message)
        self.resumed, self.stop_at, self.source = -1, NEVER, Resume.UNDECIDED
        self.alive, self.cleared, self.started = True, False, False
        self._resume(Resume(kind), step)
        self._life += 1
        machine.world.after(machine.world.random.uniform(0.05, 0.6), self._begin, self._life)
        machine.job.on_spawn(machine)
        pids = {rank: 1000 + rank for rank in self._ranks()}
        machine.link.send("started", attempt=self.attempt, pids=pids, log_from={})

    def _resume(self, kind: Resume, step: int) -> None:
        machine, memory = self._machine, self._machine.memory
        kept = kind.in_memory or kind is Resume.UNDECIDED
        memory.slots = [slot for slot in memory.slots if kept and slot[0] == step]
        found = dict(memory.slots).get(step)
        if kind.in_memory and found is None:
            machine.job.broken(f"{machine.name} is to resume at step {step}, which its memory has not")
        elif kind.in_memory and found is not None:
            self.history = found
        elif kind == Resume.STORAGE:
            self.history = f"{machine.job.storage[step]}; step {step} taken up by {memory.lineage}"
        elif kind == Resume.FRESH:
            self.history = f"began in {memory.lineage}"
        if kind != Resume.UNDECIDED:
            self.source, self.resumed, self.step = kind, max(step, 0), max(step, 0)
            machine.job.laws.resumed(machine)
        self._beat()

    def _begin(self, life: int) -> None:
        if life == self._life and self.alive:
            self.started = True

    def perform(self, verb: str, values: list[int]) -> None:
        """Ranks that only count are told where to resume and where to stop."""
        if verb == "stop":
            self.stop_at = values[0]
        elif verb == "copy_every":
            self._machine.copier.set_every(values[0])
        elif verb == "decide" and self.alive and self.resumed < 0:
            self._machine.copier.decide(Resume(values[0]))
            self._resume(Resume(values[0]), values[1])

    def leave(self) -> None:
        """SIGTERM."""
        self._machine.world.after(0.02, self._end, self._life, 143)

    def kill(self) -> None:
        """SIGKILL."""
        if not self.cleared:
            self._killed = self._life
            self._machine.world.after(0.01, self._end, self._life, -9)

    def _end(self, life: int, code: int) -> None:
        if life == self._life and self.alive and self._machine.agent_awake:
            self.die(code)
        elif life == self._life and self.alive:
            self._machine.world.after(0.05, self._end, life, code)

    def die(self, code: int) -> None:
        """All ranks of the node end."""
        self.alive = False
        self.tell_words()
        codes = {str(rank): code for rank in self._ranks()}
        self._machine.link.send("exits", attempt=self.attempt, codes=codes)
        self._machine.world.after(0.02, self._clear, self._life)

    def _clear(self, life: int) -> None:
        if life != self._life or self.cleared:
            return
        if not self._machine.agent_awake:
            self._machine.world.after(0.05, self._clear, life)
            return
        self.cleared = True
        self._machine.link.send("gone", attempt=self.attempt, port=1, slots=self.held()[1], evidence={})
        if self._next is not None:
            waited, self._next = self._next, None
            self.spawn(waited)

    # --- what it tells ----------------------------------------------------------------------------------------

    def _ranks(self) -> range:
        each = self._machine.job.ranks_each
        return range(self.place * each, (self.place + 1) * each)

    def look(self) -> int:
        """A beat."""
        return self.tell_words()

    def tell_words(self) -> int:
        """What has changed in the pages."""
        self._beats += 1
        found: list[Any] = []
        if self.place >= 0 and self.attempt >= 0:
            page, before = self._page(), self._told
            if page != before:
                self._told = page
                changes = [(row, page[i]) for i, row in enumerate(_ROWS) if not before or before[i] != page[i]]
                found = [[rank, changes] for rank in self._ranks()]
        machine = self._machine
        lineage, now = machine.memory.lineage, machine.clock()
        machine.link.send("beat", number=self._beats, lineage=lineage, now=now, words=found, noted=[], stopped=[])
        return self._beats

    def _beat(self) -> None:
        self._beat_ns = int(self._machine.clock() * 1e9)

    def _page(self) -> list[int]:
        done = self.step >= self._machine.job.steps
        flags = _ATTACHED
        if done or self.step >= self.stop_at:
            flags |= _LEFT if done else _STOPPED
        held = [step for step, _ in self._machine.memory.slots] + [-1] * MOST_SLOTS
        source = int(self.source)
        return [
            self.attempt,
            self.step,
            self._beat_ns,
            flags,
            int(Phase.TRAIN),
            self.resumed,
            source,
            *held[:MOST_SLOTS],
        ]

    def tell_all_words_again(self) -> None:
        """There is another head."""
        self._told = []

    def memory(self) -> dict[str, Any]:
        """See AgentRanks."""
        held, slots = self.held()
        told = {"lineage": self.lineage(), "running": self.running(), "copier": self._machine.copier.said()}
        return {"held": held, "slots": slots, **told}

    def heed_copies(self, message: Mapping[str, Any]) -> None:
        """See AgentRanks."""
        self._machine.copier.take(message)

    def held(self) -> tuple[list[int], dict[int, list[int]]]:
        """See AgentRanks."""
        memory, each = self._machine.memory, self._machine.job.ranks_each
        if memory.place < 0:
            return [], {}
        first = memory.place * each
        steps = [step for step, _ in memory.slots] + [-1] * (words.SLOT_STEPS.count - len(memory.slots))
        return [first, each], dict.fromkeys(range(first, first + each), steps)

    def running(self) -> dict[str, Any]:
        """See AgentRanks."""
        if not self.alive:
            return {}
        pids, resume = {rank: 1000 + rank for rank in self._ranks()}, [int(self.source), self.resumed]
        told = {"resume": resume, "stop_at": -1 if self.stop_at == NEVER else self.stop_at}
        return {"place": self.place, "pids": pids, "ended": {}, "killed": self._killed == self._life, **told}

    def lineage(self) -> str:
        """See AgentRanks."""
        return self._machine.memory.lineage

    def free_port(self) -> int:
        """See AgentRanks."""
        return 1

    def slot_dirs(self, slots: Mapping[str, int]) -> dict[str, str]:
        """See AgentRanks."""
        return {}

    # --- training ---------------------------------------------------------------------------------------------

    @property
    def trains(self) -> bool:
        """Its ranks are at work."""
        return self.alive and self.started and self._machine.awake and self.resumed >= 0

    def train(self) -> None:
        """One step, and its snapshot."""
        self.step += 1
        self._beat()
        machine = self._machine
        machine.memory.keep(self.step, self.history, machine.job.story.copies)
        machine.copier.trained(self.step, self.history)
