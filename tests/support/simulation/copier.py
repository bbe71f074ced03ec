"""The copier of a simulated node, which keeps steps and their histories instead of the bytes of snapshots.

`SimCopier` takes the place of the product's `NodeCopier` and of the copier process. The simulated world calls it in
its one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ftlaunch_contract.protocol import Resume

if TYPE_CHECKING:
    from tests.support.simulation.machine import Machine

_KEPT = 2  # the number of newest copies kept for each place


class SimCopier:
    """Copies, keeps and fetches the snapshots of all ranks of a place together.

    The copies lie in the machine's `Memory`, which outlives the copier.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._place = -1
        self._buddy = ""  # the name of the machine that gets copies
        self._every = 0  # steps between copies; 0: none
        self.lineage = ""
        self._open = False  # whether copies are accepted: not after `copies` has asked what is kept
        self._decided = False  # whether the state with which the ranks begin is known

    def describe(self) -> dict[str, Any]:
        """Return the fields of the message `copier` to the head."""
        return {"port": int(self._machine.job.story.copies > 0), "lineage": self.lineage, "every": 1}

    def begin(self, message: Mapping[str, Any]) -> None:
        """Begin an attempt with ranks on this node. message: the head's message `spawn`."""
        copies = message["copies"]
        kind, step, *_ = message["resume"]
        self._keep(message["lineage"], (copies["before"], step))
        self._place = message["place"]["node"]
        self._every = copies["every"]
        self._buddy = copies["buddy"].get("address", "")
        self._decided = False
        self.decide(Resume(kind))

    def _keep(self, lineage: str, resumed: tuple[str, int]) -> None:
        """Begin a lineage: keep copies of the resumed step only, as copies of the new lineage.

        Args:
            lineage: the new lineage.
            resumed: the earlier lineage and the step with which the new one begins.
        """
        memory = self._machine.memory
        memory.copies = {
            place: [(lineage, step, history) for before, step, history in kept if (before, step) == resumed]
            for place, kept in memory.copies.items()
        }
        memory.rescued = {}
        self.lineage = lineage
        self._open = True
        self._later(lambda: self._machine.link.send("copier", **self.describe()))

    def decide(self, kind: Resume) -> None:
        """Note with which state the ranks begin; forget all copies unless that state comes from memory."""
        if kind is Resume.UNDECIDED:
            return
        if not kind.in_memory:
            self._machine.memory.copies = {}
        self._decided = True

    def set_every(self, steps: int) -> None:
        """Copy a snapshot every `steps` steps from now on; 0 copies none."""
        self._every = steps

    def trained(self, step: int, history: str) -> None:
        """Send a copy of a new snapshot to the buddy, if the step is one of those to be copied."""
        if self._every and self._decided and self._open and self._buddy and step % self._every == 0:
            place, lineage = self._place, self.lineage

            def send() -> None:
                buddy = self._machine.job.machine(self._buddy).copier
                buddy.receive_copy(self._machine, place=place, lineage=lineage, step=step, history=history)

            self._later(send)

    def receive_copy(self, sender: Machine, place: int, lineage: str, step: int, history: str) -> None:
        """Keep a copy that another node has sent; drop a copy of another lineage, or one that no link carries."""
        machine = self._machine
        if not self._open or lineage != self.lineage or not machine.awake or not machine.job.connected(machine, sender):
            return
        kept = machine.memory.copies.get(place, [])
        machine.memory.copies[place] = [*kept, (lineage, step, history)][-_KEPT:]

    def obey(self, message: Mapping[str, Any]) -> None:
        """Obey a message of the head: `buddy`, `keep`, `copies` or `fetch`."""
        if message["do"] == "buddy":
            self._buddy = message["to"].get("address", "")
        elif message["do"] == "keep":
            self._keep(message["lineage"], (message["before"], message["step"]))
            self._place = -1
            self._every = 0
            self._buddy = ""
            self._decided = False
        elif message["do"] == "copies":
            self._open = False
            held = self._machine.memory.copies.items()
            steps = {
                place: [step for lineage, step, _ in kept if lineage == message["lineage"]] for place, kept in held
            }
            by_rank = {rank: found for place, found in steps.items() for rank in self._ranks(place) if found}
            self._later(lambda: self._machine.link.send("copies", number=message["number"], held=by_rank))
        else:
            self._later(lambda: self._fetch(message), 0.3)

    def _ranks(self, place: int) -> Sequence[int]:
        each = self._machine.job.ranks_each
        return range(place * each, (place + 1) * each)

    def _fetch(self, message: Mapping[str, Any]) -> None:
        """Fetch the snapshots that the head names, and report the end of the fetch.

        A fetched copy becomes this place's own snapshot, or is kept to be saved for a place whose node is lost.
        """
        machine = self._machine
        step = message["step"]
        error = ""
        for place, ranks in self._by_place(message["ranks"]).items():
            error = error or self._fetch_for(place, step, ranks, message["suppliers"])
        machine.link.send(
            "fetched",
            number=message["number"],
            error=error,
            seconds=0.1,
            bytes=1,
            sources=[{"rank": 0, "group": "model", "node": 0, "bytes": 1}],
        )

    def _by_place(self, ranks: Mapping[str, Any]) -> dict[int, list[Any]]:
        by_place: dict[int, list[Any]] = {}
        for rank, holders in ranks.items():
            by_place.setdefault(int(rank) // self._machine.job.ranks_each, []).append(holders)
        return by_place

    def _fetch_for(self, place: int, step: int, ranks: Sequence[Any], suppliers: Sequence[Any]) -> str:
        machine = self._machine
        (holder,) = {holders[0]["address"] for holders in ranks}
        found = self._find(machine.job.machine(holder), place, step)
        helpers = [machine.job.machine(supplier["address"]) for supplier in suppliers]
        if found is None or not any(self._reaches(node) and step in dict(node.memory.slots) for node in helpers):
            return "nobody answers"
        if place == self._place:
            machine.memory.slots = [(step, found)]
            machine.job.fetched.add(step)
        else:
            machine.memory.rescued[place] = step, found
        return ""

    def _find(self, holder: Machine, place: int, step: int) -> str | None:
        kept = holder.memory.copies.get(place, [])
        found = [history for lineage, at, history in kept if (lineage, at) == (self.lineage, step)]
        return found[-1] if found and self._reaches(holder) else None

    def _reaches(self, other: Machine) -> bool:
        return other.awake and (other is self._machine or self._machine.job.connected(self._machine, other))

    def _later(self, action: Any, most: float = 0.05) -> None:
        """Have the copier's process do something after at most `most` seconds.

        The process stands still while its machine does, and never acts once its agent has died.
        """
        machine = self._machine

        def act() -> None:
            if machine.copier is not self or not machine.lives:
                return
            if machine.awake:
                action()
            else:
                machine.world.after(0.05, act)

        machine.world.after(machine.world.random.uniform(0.001, most), act)
