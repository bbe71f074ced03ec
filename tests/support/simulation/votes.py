"""Nodes that elect the head: the real rules and claims of the voters, over disks and links of simulated machines."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ftlaunch.nodes.channel.claims import Claims, Sign
from ftlaunch.nodes.channel.votes.claims import Enough, VotedClaims, Wanted
from ftlaunch.nodes.channel.votes.records import Answer, Record, Voter, is_of_another_job, must_be_written, take
from ftlaunch.nodes.cluster.unshared_nodes import UnsharedNodes
from tests.support.simulation.storage import ENDPOINT, STALE, FilesSeen, SharedFiles, Storage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftlaunch.nodes.cluster.unshared_nodes import UnsharedNode
    from tests.support.simulation.head import Head
    from tests.support.simulation.job import Job
    from tests.support.simulation.machine import Machine

_NOWHERE = Path("run")
_LOOK_SECONDS = 2.0  # between two looks for another head at the endpoint
_LOST = 0.02  # the chance that a request or an answer is lost although the link is whole


class AllUnshared(UnsharedNodes):
    """Nodes that all count as ones that share no run dir, though the simulated ones do."""

    def are_among(self, nodes: Iterable[UnsharedNode]) -> bool:
        """Return True."""
        return True


@dataclass
class Disk:
    """What the voter of a machine has written."""

    name: str = ""
    boot: str = ""
    record: Record | None = None
    """what the process knows, which may be newer than what it has written"""
    written: Record | None = None
    former: Record | None = None
    taken_at: float = -math.inf  # of the machine's clock; forgotten by a voter that starts anew

    @property
    def known(self) -> Record | None:
        """The newest record that names voters."""
        return self.former if self.written is None else self.written

    def leave(self) -> None:
        """Leave the other voters, as `VoterFile.leave` does."""
        self.former = self.known
        self.record = self.written = None
        self.name = ""


class SimVoter:
    """The voter of a machine, in place of `NodeVoter`."""

    def __init__(self, storage: VotedStorage, machine: Machine) -> None:
        """Begin without a process; an agent that starts ends the one before."""
        self._storage = storage
        self._machine = machine
        self.runs = False
        """whether the process exists"""

    @property
    def disk(self) -> Disk:
        """What the machine's voter has written."""
        return self._storage.disk(self._machine)

    def boot(self) -> None:
        """Note that the disk was written since the machine's boot."""
        self.disk.boot = self._machine.boot

    def begin(self, term: int, head: str) -> None:
        """Take up the work under a head, as `VoterProcess` does, and tell the head."""
        disk = self.disk
        if not self.runs:
            disk.taken_at = -math.inf
            disk.record = disk.written
            if disk.boot != self._machine.boot:
                disk.leave()
        self.runs = True
        if disk.record is not None and is_of_another_job(disk.record, head, term):
            disk.leave()
        disk.boot = self._machine.boot
        disk.name = disk.name or self._storage.new_name()
        self._machine.link.send("voter", name=disk.name, port=1)


class SimPort:
    """A VoterPort of a process on a machine."""

    def __init__(self, storage: VotedStorage, machine: Machine) -> None:
        """Reach the voters from `machine`."""
        self._storage = storage
        self._machine = machine

    def read_own(self) -> Record | None:
        """Return what the machine's voter has written."""
        return self._storage.disk(self._machine).known

    def forget_own(self) -> bool:
        """Remove what the machine's voter has written, unless it runs."""
        if self._storage.runs(self._machine):
            return False
        self._storage.empty_disk(self._machine)
        self._storage.begins_anew.add(self._machine.name)
        return True

    def ask(self, voters: Sequence[Voter], offered: Record | None, enough: Enough) -> dict[str, Answer]:
        """Ask all voters that can be reached. Each request and each answer may be lost on its own."""
        found: dict[str, Answer] = {}
        for voter in self._storage.shuffled(voters):
            there = self._storage.job.machine(voter.address)
            if not self._arrives(self._machine, there) or not self._storage.runs(there) or not there.awake:
                continue
            disk = self._storage.disk(there)
            if disk.name != voter.name:
                continue
            answer = take(disk.record, offered, there.clock() - disk.taken_at)
            if answer.taken:
                if must_be_written(disk.record, answer.kept):
                    disk.written = answer.kept
                disk.record = answer.kept
                disk.former = None
                disk.taken_at = there.clock()
            if self._arrives(there, self._machine):
                found[voter.name] = answer
        return found

    def _arrives(self, sender: Machine, receiver: Machine) -> bool:
        if sender is receiver:
            return True
        whole = sender.way.up and receiver.way.down and not receiver.down
        return whole and self._storage.job.world.random.random() >= _LOST


class SimVoting:
    """What the head's cluster sees of its voters, in place of `SignOfLife`."""

    def __init__(self, storage: VotedStorage, head: Head) -> None:
        """Begin with those that the head was elected by."""
        self._storage = storage
        self._head = head
        self.wanted: Wanted | None = None

    @property
    def sign(self) -> Sign:
        """The head's newest sign of life."""
        return self._head.sign

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The voters, as a majority of them knows."""
        record = self._storage.claims_of(self._head).record
        return () if record is None or record.joining else record.voters

    def want_voters(self, voters: tuple[Voter, ...], own: Voter, others: tuple[Voter, ...]) -> None:
        """Make these the voters."""
        self.wanted = Wanted(voters, own, others)


class VotedStorage(Storage):
    """The disks of the machines and the claims that lie on them."""

    def __init__(self, job: Job) -> None:
        """Begin with empty disks."""
        super().__init__(job)
        self.job = job
        self.disks: dict[str, Disk] = {}
        self._local: dict[str, SharedFiles] = {}
        self._of_head: dict[Head, VotedClaims] = {}
        self._votings: dict[Head, SimVoting] = {}
        self._life_of: dict[str, str] = {}  # process of a head -> that of the head with which its life of the job began
        self._newest: dict[str, int] = {}  # such a life -> its highest term
        self.begins_anew: set[str] = set()
        """the machines whose next head begins the job anew"""
        self._names = 0
        self.lost_majority = False
        self._watched: set[Head] = set()

    # --- the disks --------------------------------------------------------------------------------------------

    def disk(self, machine: Machine) -> Disk:
        """Return the disk of a machine."""
        return self.disks.setdefault(machine.name, Disk())

    def empty_disk(self, machine: Machine) -> None:
        """Forget what the voter has written; the claims of the run dir as well if the machine was lost."""
        self.disks.pop(machine.name, None)
        if machine.down:
            self._local.pop(machine.name, None)

    def new_name(self) -> str:
        """Return a name that no voter had before."""
        self._names += 1
        return f"voter {self._names}"

    def runs(self, machine: Machine) -> bool:
        """Return whether a voter runs on a machine."""
        return machine.lives and machine.voter is not None and machine.voter.runs

    def shuffled(self, voters: Sequence[Voter]) -> list[Voter]:
        """Return voters in an order of chance."""
        order = list(voters)
        self.job.world.random.shuffle(order)
        return order

    def voter_of(self, machine: Machine) -> SimVoter:
        """Return a voter for an agent that starts."""
        machine.voter = SimVoter(self, machine)
        return machine.voter

    # --- the claims -------------------------------------------------------------------------------------------

    def claims(self, machine: Machine) -> VotedClaims:
        """Return claims for a process on a machine that is no head."""
        files = self._local.setdefault(machine.name, SharedFiles())
        seen = FilesSeen(files, lambda: self.job.world.now)

        def is_alive_here(sign: Sign) -> bool:
            heads = (head for head in self.job.heads if head.machine is machine and head.lives)
            return any(head.sign.process == sign.process for head in heads)

        return VotedClaims(Claims(_NOWHERE, seen), SimPort(self, machine), STALE, is_alive_here)

    def make_claims(self, machine: Machine) -> VotedClaims:
        """Return claims for a process that stands for election on a machine."""
        return self.claims(machine)

    def note_candidate(self, sign: Sign, before: Sign | None) -> None:
        """Note of which life of the job a candidate is.

        A head without one before it begins the job anew, and counts its terms apart from those of another life.
        """
        is_new = before is None or before.ended or sign.address in self.begins_anew
        self.begins_anew.discard(sign.address)
        life = sign.process if before is None or is_new else self._life_of[before.process]
        self._life_of[sign.process] = life

    def hand_over(self, claims: Claims | VotedClaims, sign: Sign) -> None:
        """Give the claims with which a term was won to its head."""
        assert isinstance(claims, VotedClaims)
        self._won = claims
        life = self._life_of[sign.process]
        if self._newest.get(life, 0) >= sign.term:
            self.job.broken(f"two heads are elected: one for term {self._newest[life]}, then one for {sign.term}")
        self._newest[life] = max(self._newest.get(life, 0), sign.term)

    def newest_term_beside(self, head: Head) -> int:
        """Return the highest term that was claimed of the life of the job in which a head is."""
        return self._newest[self._life_of[head.sign.process]]

    def claims_of(self, head: Head) -> VotedClaims:
        """Return the claims that a head uses."""
        if head not in self._of_head:
            self._of_head[head] = self._won
        return self._of_head[head]

    def voting(self, head: Head) -> SimVoting:
        """Return what changes the voters of a head."""
        self.claims_of(head)
        return self._votings.setdefault(head, SimVoting(self, head))

    def _change_voters(self, head: Head) -> None:
        with contextlib.suppress(OSError):
            self.claims_of(head).change_voters(self.voting(head).wanted, head.next_sign)

    # --- the endpoint -----------------------------------------------------------------------------------------

    def watch(self, head: Head) -> None:
        """Have a head show its sign of life, and look for another one at the endpoint, as `EndpointWatch` does."""
        if head not in self._watched:
            self._watched.add(head)
            self.job.world.after(_LOOK_SECONDS, self._look, head)
        super().watch(head)

    def _look(self, head: Head) -> None:
        if not head.lives:
            return
        self.job.world.after(_LOOK_SECONDS, self._look, head)
        there = self.job.machine(ENDPOINT[0])
        other = self.job.listener(ENDPOINT)
        if other is None or other is head or other.sleeps() or head.sleeps() or head.machine is there:
            return
        fresh = head.shown + 4 * STALE > head.clock()
        if fresh and self.voting(head).voters and self.job.connected(head.machine, there):
            is_elected = self.voting(other).voters and other.term >= head.term
            if other.cluster.left and not is_elected:
                self.job.world.record(f"the head of term {other.term} at the endpoint gives way")
                other.cluster.send_elsewhere(head.machine.name, head.port)
                self.job.world.after(0.1, other.die)
