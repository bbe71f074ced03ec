"""Simulated ranks that only count steps, and the node's memory, which outlives the ranks and their agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ftlaunch.nodes.cluster.membership.lineage import nodes_of
from ftlaunch_contract.pages import words
from ftlaunch_contract.protocol import Flag, Phase, Resume

if TYPE_CHECKING:
    from tests.support.simulation.machine import Machine

SLOTS = 3
MOST_SLOTS = 4  # slots of a job that copies snapshots to other nodes
NEVER = 1 << 40  # a step that no job reaches
# The words of a rank's page that beats report.
_ROWS = [
    int(words.ATTEMPT),
    int(words.STEP),
    int(words.BEAT),
    int(words.FLAGS),
    int(words.PHASE),
    int(words.RESUMED_STEP),
    int(words.RESUMED_FROM),
    *(int(words.SLOT_STEPS) + slot for slot in range(MOST_SLOTS)),
]
_ATTACHED = int(Flag.ATTACHED)
_LEFT = int(Flag.LOOP_LEFT)
_STOPPED = int(Flag.LOOP_LEFT | Flag.STOPPED)


class Memory:
    """The snapshots in a node's memory: the step and the history in each slot."""

    def __init__(self) -> None:
        self.place = -1
        self.slots: list[tuple[int, str]] = []
        self.lineage = ""
        self.copies: dict[int, list[tuple[str, int, str]]] = {}
        """place -> lineage, step and history of the copies that this node keeps for the place"""
        self.rescued: dict[int, tuple[int, str]] = {}
        """place -> step and history of the snapshot that was rebuilt here, to be saved for the place"""

    def keep(self, step: int, history: str, copied_every: int = 0) -> None:
        """Keep a new snapshot, and drop the oldest: of snapshots that are copied to other nodes the two newest stay."""
        self.slots = [*self.slots, (step, history)]
        if not copied_every:
            self.slots = self.slots[-SLOTS:]
            return
        copied = [slot for slot in self.slots if slot[0] % copied_every == 0][-2:]
        free = [slot for slot in self.slots if slot not in copied]
        self.slots = sorted([*copied, *free[len(copied) - MOST_SLOTS :]])[-MOST_SLOTS:]


class Ranks:
    """All ranks of a node as one, in place of `AgentRanks`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.attempt = -1
        self.place = -1
        self.step = -1
        self.resumed = -1
        self.nodes = 0
        self.stop_at = NEVER
        self.source = Resume.UNDECIDED
        self.alive = self.started = False
        self.cleared = True
        self.history = ""
        self._beats = 0
        self._beat_ns = 0
        self._reported: list[int] = []  # the words of the page as last reported, in the order of _ROWS
        self._next: Mapping[str, Any] | None = None
        self._life = 0  # the number of the newest start of the ranks
        self._killed = -1  # the number of the start whose ranks this agent has killed

    @property
    def clearing(self) -> bool:
        """Whether all ranks have ended, but not all processes that they left."""
        return not self.alive and not self.cleared

    # --- what the agent does ----------------------------------------------------------------------------------

    def spawn(self, message: Mapping[str, Any]) -> None:
        """Start the ranks of an attempt, once the last ranks are gone. message: the head's message `spawn`."""
        if not self.cleared:
            self._next = message
            return
        machine = self._machine
        memory = machine.memory
        kind, step, *_ = message["resume"]
        if memory.place != message["place"]["node"]:
            self._reported = []
        self.attempt = message["attempt"]
        self.place = message["place"]["node"]
        self.nodes = message["place"]["nodes"]
        if memory.place != self.place or nodes_of(memory.lineage) != self.nodes:
            memory.slots = []
        memory.place = self.place
        memory.lineage = message["lineage"]
        machine.copier.begin(message)
        self.resumed = -1
        self.stop_at = NEVER
        self.source = Resume.UNDECIDED
        self.alive = True
        self.cleared = False
        self.started = False
        self._resume(Resume(kind), step)
        self._life += 1
        machine.world.after(machine.world.random.uniform(0.05, 0.6), self._begin, self._life)
        machine.job.on_spawn(machine)
        pids = {rank: 1000 + rank for rank in self._ranks()}
        machine.link.send("started", attempt=self.attempt, pids=pids, log_from={})

    def _resume(self, kind: Resume, step: int) -> None:
        machine = self._machine
        memory = machine.memory
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
            self.source = kind
            self.resumed = max(step, 0)
            self.step = max(step, 0)
            machine.job.laws.resumed(machine)
        self._beat()

    def _begin(self, life: int) -> None:
        if life == self._life and self.alive:
            self.started = True

    def perform(self, verb: str, values: list[int]) -> None:
        """Follow a change that the head has made to the pages.

        Args:
            verb: the method of the pages that the head has called.
            values: its arguments.
        """
        if verb == "stop":
            self.stop_at = values[0]
        elif verb == "copy_every":
            self._machine.copier.set_every(values[0])
        elif verb == "decide" and self.alive and self.resumed < 0:
            self._machine.copier.decide(Resume(values[0]))
            self._resume(Resume(values[0]), values[1])

    def leave(self) -> None:
        """Have the ranks end soon, as by SIGTERM."""
        self._machine.world.after(0.02, self._end, self._life, 143)

    def kill(self) -> None:
        """Have the ranks end soon, as by SIGKILL."""
        if not self.cleared:
            self._killed = self._life
            self._machine.world.after(0.01, self._end, self._life, -9)

    def _end(self, life: int, code: int) -> None:
        if life == self._life and self.alive and self._machine.agent_awake:
            self.die(code)
        elif life == self._life and self.alive:
            self._machine.world.after(0.05, self._end, life, code)

    def die(self, code: int) -> None:
        """End all ranks of the node with an exit code, and report their exits."""
        self.alive = False
        self.send_beat()
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
        self._machine.link.send(
            "gone", attempt=self.attempt, port=1, slots=self.read_held()[1], evidence={}, awaits_memory=0
        )
        if self._next is not None:
            waited = self._next
            self._next = None
            self.spawn(waited)

    # --- what it tells ----------------------------------------------------------------------------------------

    def _ranks(self) -> range:
        each = self._machine.job.ranks_each
        return range(self.place * each, (self.place + 1) * each)

    def poll(self) -> int:
        """Send a beat; return its number."""
        return self.send_beat()

    def send_beat(self) -> int:
        """Send the words of the pages that have changed, in a beat; return the number of the beat."""
        self._beats += 1
        changed: list[Any] = []
        if self.place >= 0 and self.attempt >= 0:
            page = self._page()
            before = self._reported
            if page != before:
                self._reported = page
                words_of_rank = [(row, page[i]) for i, row in enumerate(_ROWS) if not before or before[i] != page[i]]
                changed = [[rank, words_of_rank] for rank in self._ranks()]
        machine = self._machine
        machine.link.send(
            "beat",
            number=self._beats,
            lineage=machine.memory.lineage,
            now=machine.clock(),
            words=changed,
            noted=[],
            stopped=[],
        )
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

    def resend_all_words(self) -> None:
        """Have the next beat carry the whole pages, because there is a new head."""
        self._reported = []

    def describe_memory(self) -> dict[str, Any]:
        """Return the fields of `hello` that describe the node's memory and ranks."""
        held, slots = self.read_held()
        return {
            "held": held,
            "slots": slots,
            "lineage": self.read_lineage(),
            "running": self.describe_running(),
            "copier": self._machine.copier.describe(),
        }

    def forward_to_copier(self, message: Mapping[str, Any]) -> None:
        """Pass a message about copies on to the copier."""
        self._machine.copier.obey(message)

    def read_held(self) -> tuple[list[int], dict[int, list[int]]]:
        """Return which ranks' memory lies here, as `AgentRanks.read_held` does.

        Returns:
            The first rank and the number of ranks, or an empty list; and the steps in the slots of each rank.
        """
        memory = self._machine.memory
        each = self._machine.job.ranks_each
        if memory.place < 0:
            return [], {}
        first = memory.place * each
        steps = [step for step, _ in memory.slots] + [-1] * (words.SLOT_STEPS.count - len(memory.slots))
        return [first, each], dict.fromkeys(range(first, first + each), steps)

    def describe_running(self) -> dict[str, Any]:
        """Describe the ranks that run on, for a head that may adopt them; empty if none lives."""
        if not self.alive:
            return {}
        return {
            "place": self.place,
            "pids": {rank: 1000 + rank for rank in self._ranks()},
            "ended": {},
            "killed": self._killed == self._life,
            "resume": [int(self.source), self.resumed],
            "stop_at": -1 if self.stop_at == NEVER else self.stop_at,
        }

    def read_lineage(self) -> str:
        """Return the lineage of the steps in memory."""
        return self._machine.memory.lineage

    def find_free_port(self) -> int:
        """Return a port at which ranks can meet."""
        return 1

    def slot_dirs(self, slots: Mapping[str, int]) -> dict[str, str]:
        """Return no directories: snapshots here have no bytes."""
        return {}

    # --- training ---------------------------------------------------------------------------------------------

    @property
    def trains(self) -> bool:
        """Whether the ranks are at work."""
        return self.alive and self.started and self._machine.awake and self.resumed >= 0

    def train(self) -> None:
        """Make one step, and keep its snapshot."""
        self.step += 1
        self._beat()
        machine = self._machine
        machine.memory.keep(self.step, self.history, machine.job.story.copies)
        machine.copier.trained(self.step, self.history)
