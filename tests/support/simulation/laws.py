"""What must hold of a job at every moment, whatever befalls it; each violation is an error with a sentence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ftlaunch.policy.restart_policy import Budget
from ftlaunch_contract.protocol import EXIT_SAVED

if TYPE_CHECKING:
    from tests.support.simulation.head import Head
    from tests.support.simulation.job import Job
    from tests.support.simulation.machine import Machine

_AFTER_THAW = 0.5  # seconds in which ranks that were stopped may not know yet that they are over
_LAST = 25  # events that a violation tells of


class Broken(AssertionError):
    """Something does not hold that must."""


class Laws:
    """Of one job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._resumed: dict[str, tuple[str, tuple[int, str]]] = {}
        self._stepped: list[str] = []  # lineages whose ranks have made steps together, in their order
        self._spent = 0

    def broken(self, why: str) -> None:
        """Something does not hold."""
        job = self._job
        raise Broken("\n".join([why, str(job.story), "the last events:", *job.world.story[-_LAST:]]))

    # --- one attempt ------------------------------------------------------------------------------------------

    def places(self, at_work: Collection[Machine]) -> None:
        """At most one node's ranks are at work in a place."""
        seen: dict[int, Machine] = {}
        for machine in at_work:
            if not self._knows_the_time(machine):
                continue
            other = seen.setdefault(machine.ranks.place, machine)
            if other is not machine:
                self.broken(f"{other.name} and {machine.name} both work in place {machine.ranks.place}")

    def _knows_the_time(self, machine: Machine) -> bool:
        """Whether its agent can have ended its ranks: one that is stopped, or was until now, cannot."""
        return machine.agent_awake and machine.thawed_at < self._job.world.now - _AFTER_THAW

    def resumed(self, machine: Machine) -> None:
        """All nodes of an attempt go on from one step of one history."""
        ranks, lineage = machine.ranks, machine.memory.lineage
        mine = ranks.step, "new" if ranks.history.startswith("began in") else ranks.history
        first, theirs = self._resumed.setdefault(lineage, (machine.name, mine))
        if theirs != mine:
            self.broken(f"{machine.name} resumes {lineage} at {mine}, where {first} has resumed it at {theirs}")

    def stepped(self, together: Sequence[Machine]) -> None:
        """A whole set of ranks makes a step: they are of one history, and no other set has taken their place."""
        states = {(machine.ranks.history, machine.ranks.step) for machine in together}
        if len(states) > 1:
            told = [(machine.name, machine.ranks.step, machine.ranks.history) for machine in together]
            self.broken(f"states of different histories train together: {told}")
        lineage = together[0].memory.lineage
        if lineage not in self._stepped:
            self._stepped.append(lineage)
        elif lineage != self._stepped[-1] and all(self._knows_the_time(machine) for machine in together):
            self.broken(f"{lineage} makes a step after {self._stepped[-1]} has taken its place")

    # --- one head ---------------------------------------------------------------------------------------------

    def commits(self, head: Head, step: int, histories: Collection[str]) -> None:
        """A checkpoint is of one history, and no head commits that another one has replaced."""
        if (newest := self._job.claims.shared.newest_term) > head.term:
            self.broken(f"the head of term {head.term} commits step {step}, though term {newest} was claimed")
        if len(set(histories)) > 1:
            self.broken(f"a torn checkpoint of step {step}: {sorted(set(histories))}")

    def begun(self, head: Head, budget: Budget) -> None:
        """An attempt begins: what was spent is known, and counts on, whichever head begins it."""
        if self._job.claims.shared.newest_term > head.term:
            return  # it does not know yet that it was replaced: what it begins counts for nothing
        if budget.restarts < self._spent:
            self.broken(f"{budget.restarts} restarts count as spent, and {self._spent} did before")
        if head.judged and budget.restarts == self._spent:
            self.broken(f"an attempt follows a failure, and still {budget.restarts} restarts count as spent")
        self._spent, head.judged = budget.restarts, False

    # --- the end ----------------------------------------------------------------------------------------------

    def ended(self, code: int, head: Head) -> None:
        """A head ends the job: it is the newest one, or all is done that there was to do."""
        done = code == 0 and self._job.steps in self._job.storage
        if self._job.claims.shared.newest_term > head.term and not done:
            self.broken(f"the head of term {head.term}, which was replaced, has ended the job with {code}")

    def left(self, code: int) -> None:
        """All agents that have had a part in the job have ended as it has."""
        codes = {machine.name: machine.code for machine in self._job.machines if machine.code is not None}
        others = {name: told for name, told in codes.items() if told not in (code, EXIT_SAVED)}
        if others or (code != EXIT_SAVED and EXIT_SAVED in codes.values() and not self._job.story.faults):
            self.broken(f"the job has ended with {code}, and agents with {codes}")
