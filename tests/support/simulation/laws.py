"""The laws that hold for a simulated job at every moment, whatever faults happen.

The simulation calls each law where something happens. A violation raises `Broken` with a sentence and the story.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ftlaunch.policy.restart_policy import Budget
from ftlaunch_contract.protocol import EXIT_SAVED

if TYPE_CHECKING:
    from tests.support.simulation.head import Head
    from tests.support.simulation.job import Job
    from tests.support.simulation.machine import Machine

_AFTER_THAW = 0.5  # seconds in which an agent that was stopped may not have ended its outdated ranks yet
_LAST = 25  # the number of events in the message of a violation


class Broken(AssertionError):
    """A law that does not hold."""


class Laws:
    """The laws of one job, with what was seen of the job so far."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._resumed: dict[str, tuple[str, tuple[int, str]]] = {}  # lineage -> first node, with its step and history
        self._stepped: list[str] = []  # lineages whose ranks have made steps together, oldest first
        self._spent = 0  # restarts that counted as spent when the newest attempt began

    def broken(self, why: str) -> None:
        """Raise Broken with a reason, the story and the last events."""
        job = self._job
        raise Broken("\n".join([why, str(job.story), "the last events:", *job.world.story[-_LAST:]]))

    # --- one attempt ------------------------------------------------------------------------------------------

    def places(self, at_work: Collection[Machine]) -> None:
        """Check that no two nodes train in one place."""
        seen: dict[int, Machine] = {}
        for machine in at_work:
            if not self._knows_the_time(machine):
                continue
            other = seen.setdefault(machine.ranks.place, machine)
            if other is not machine:
                self.broken(f"{other.name} and {machine.name} both work in place {machine.ranks.place}")

    def _knows_the_time(self, machine: Machine) -> bool:
        """Return whether the agent had time to end outdated ranks, as an agent that was stopped until now had not."""
        return machine.agent_awake and machine.thawed_at < self._job.world.now - _AFTER_THAW

    def resumed(self, machine: Machine) -> None:
        """Check that all nodes of an attempt resume from one step of one history."""
        ranks = machine.ranks
        lineage = machine.memory.lineage
        history = "new" if ranks.history.startswith("began in") else ranks.history
        mine = ranks.step, history
        first, theirs = self._resumed.setdefault(lineage, (machine.name, mine))
        if theirs != mine:
            self.broken(f"{machine.name} resumes {lineage} at {mine}, where {first} has resumed it at {theirs}")

    def stepped(self, together: Sequence[Machine]) -> None:
        """Check a step of a whole set of ranks: all share one history, and no other set has taken their place."""
        states = {(machine.ranks.history, machine.ranks.step) for machine in together}
        if len(states) > 1:
            members = [(machine.name, machine.ranks.step, machine.ranks.history) for machine in together]
            self.broken(f"states of different histories train together: {members}")
        lineage = together[0].memory.lineage
        if lineage not in self._stepped:
            self._stepped.append(lineage)
        elif lineage != self._stepped[-1] and all(self._knows_the_time(machine) for machine in together):
            self.broken(f"{lineage} makes a step after {self._stepped[-1]} has taken its place")

    # --- one head ---------------------------------------------------------------------------------------------

    def commits(self, head: Head, step: int, histories: Collection[str]) -> None:
        """Check that a checkpoint has one history, and that no other head has replaced the head that commits it."""
        if (newest := self._job.claims.newest_term_beside(head)) > head.term:
            self.broken(f"the head of term {head.term} commits step {step}, though term {newest} was claimed")
        if len(set(histories)) > 1:
            self.broken(f"a torn checkpoint of step {step}: {sorted(set(histories))}")

    def begun(self, head: Head, budget: Budget) -> None:
        """Check that an attempt of the newest head begins with a budget that counts all restarts so far."""
        if self._job.claims.newest_term_beside(head) > head.term:
            return  # the head does not know yet that it was replaced: its attempt counts for nothing
        if budget.restarts < self._spent:
            self.broken(f"{budget.restarts} restarts count as spent, and {self._spent} did before")
        if head.judged and budget.restarts == self._spent:
            self.broken(f"an attempt follows a failure, and still {budget.restarts} restarts count as spent")
        self._spent = budget.restarts
        head.judged = False

    # --- the end ----------------------------------------------------------------------------------------------

    def ended(self, code: int, head: Head) -> None:
        """Check that the newest head ends the job, unless the job has saved its last step."""
        done = code == 0 and self._job.steps in self._job.storage
        if self._job.claims.newest_term_beside(head) > head.term and not done:
            self.broken(f"the head of term {head.term}, which was replaced, has ended the job with {code}")

    def left(self, code: int) -> None:
        """Check that all agents that took part have ended with the job's exit code."""
        machines = self._job.machines
        if self._job.story.votes:  # an empty machine cannot find a head elsewhere while nobody listens at the endpoint
            machines = [machine for machine in machines if machine.link.was_met]
        codes = {machine.name: machine.code for machine in machines if machine.code is not None}
        others = {name: agent_code for name, agent_code in codes.items() if agent_code not in (code, EXIT_SAVED)}
        if others or (code != EXIT_SAVED and EXIT_SAVED in codes.values() and not self._job.story.faults):
            self.broken(f"the job has ended with {code}, and agents with {codes}")
