"""The copier of a simulated node: it keeps steps and their histories instead of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ftlaunch_contract.protocol import Resume

if TYPE_CHECKING:
    from tests.support.simulation.machine import Machine

_KEPT = 2  # steps of each place


class SimCopier:
    """Like NodeCopier and its process: all ranks of a place as one. What it keeps lies in the machine's memory."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._place, self._buddy, self._every = -1, "", 0
        self.lineage, self._open, self._decided = "", False, False

    def said(self) -> dict[str, Any]:
        """See NodeCopier."""
        return {"port": int(self._machine.job.story.copies > 0), "lineage": self.lineage, "every": 1}

    def begin(self, message: Mapping[str, Any]) -> None:
        """An attempt begins."""
        copies, (kind, step, *_) = message["copies"], message["resume"]
        self._keep(message["lineage"], (copies["before"], step))
        self._place, self._every = message["place"]["node"], copies["every"]
        self._buddy, self._decided = copies["buddy"].get("address", ""), False
        self.decide(Resume(kind))

    def _keep(self, lineage: str, resumed: tuple[str, int]) -> None:
        """What is kept of a step of an attempt belongs to another one from now on."""
        memory = self._machine.memory
        memory.copies = {
            place: [(lineage, at, history) for one, at, history in kept if (one, at) == resumed]
            for place, kept in memory.copies.items()
        }
        memory.rescued = {}
        self.lineage, self._open = lineage, True
        self._later(lambda: self._machine.link.send("copier", **self.said()))

    def decide(self, kind: Resume) -> None:
        """It is known with what the ranks begin."""
        if kind is Resume.UNDECIDED:
            return
        if not kind.in_memory:
            self._machine.memory.copies = {}
        self._decided = True

    def set_every(self, steps: int) -> None:
        """See Pages.copy_every."""
        self._every = steps

    def trained(self, step: int, history: str) -> None:
        """A snapshot was taken: it is sent, if it is one of those."""
        if self._every and self._decided and self._open and self._buddy and step % self._every == 0:
            told = self._place, self.lineage, step, history
            self._later(lambda: self._machine.job.machine(self._buddy).copier.take_copy(self._machine, *told))

    def take_copy(self, sender: Machine, place: int, lineage: str, step: int, history: str) -> None:
        """A copy has come, where the links carry it."""
        machine = self._machine
        if not self._open or lineage != self.lineage or not machine.awake or not machine.job.connected(machine, sender):
            return
        kept = machine.memory.copies.get(place, [])
        machine.memory.copies[place] = [*kept, (lineage, step, history)][-_KEPT:]

    def take(self, message: Mapping[str, Any]) -> None:
        """See NodeCopier."""
        if message["do"] == "buddy":
            self._buddy = message["to"].get("address", "")
        elif message["do"] == "keep":
            self._keep(message["lineage"], (message["before"], message["step"]))
            self._place, self._every, self._buddy, self._decided = -1, 0, "", False
        elif message["do"] == "copies":
            self._open = False
            held = self._machine.memory.copies.items()
            steps = {place: [at for lineage, at, _ in kept if lineage == message["lineage"]] for place, kept in held}
            by_rank = {rank: found for place, found in steps.items() for rank in self._ranks(place) if found}
            self._later(lambda: self._machine.link.send("copies", number=message["number"], held=by_rank))
        else:
            self._later(lambda: self._fetch(message), 0.3)

    def _ranks(self, place: int) -> Sequence[int]:
        each = self._machine.job.ranks_each
        return range(place * each, (place + 1) * each)

    def _fetch(self, message: Mapping[str, Any]) -> None:
        """The holder's copy becomes this place's own snapshot, with the help of one that has that step itself."""
        machine, step, error = self._machine, message["step"], ""
        for place, ranks in self._by_place(message["ranks"]).items():
            error = error or self._fetch_for(place, step, ranks, message["suppliers"])
        told = {"number": message["number"], "error": error, "seconds": 0.1, "bytes": 1}
        machine.link.send("fetched", **told, sources=[{"rank": 0, "group": "model", "node": 0, "bytes": 1}])

    def _by_place(self, ranks: Mapping[str, Any]) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        for rank, told in ranks.items():
            found.setdefault(int(rank) // self._machine.job.ranks_each, []).append(told)
        return found

    def _fetch_for(self, place: int, step: int, ranks: Sequence[Any], suppliers: Sequence[Any]) -> str:
        machine = self._machine
        (holder,) = {told[0]["address"] for told in ranks}
        found = self._find(machine.job.machine(holder), place, step)
        helpers = [machine.job.machine(told["address"]) for told in suppliers]
        if found is None or not any(self._reaches(one) and step in dict(one.memory.slots) for one in helpers):
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
        """By its process, which stands still where the machine does; not at all where its agent has died meanwhile."""
        machine = self._machine

        def act() -> None:
            if machine.copier is not self or not machine.lives:
                return
            if machine.awake:
                action()
            else:
                machine.world.after(0.05, act)

        machine.world.after(machine.world.random.uniform(0.001, most), act)
