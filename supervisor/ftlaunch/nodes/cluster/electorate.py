"""Chooses the nodes that elect the head, where nodes do not share its run dir. Runs in the head's event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.nodes.channel.votes.records import MOST_VOTERS, Voter
from ftlaunch.nodes.cluster.membership.roster import Roster
from ftlaunch.nodes.cluster.membership.voting import Voting
from ftlaunch.nodes.cluster.nodes.node import Node
from ftlaunch.nodes.cluster.unshared_nodes import UnsharedNodes

FEWEST = 3
"""machines that it takes for a majority without one of them"""


class Electorate:
    """The nodes of one job that elect its head."""

    def __init__(
        self,
        voting: Voting | None,
        nodes: Mapping[int, Node],
        roster: Roster,
        unshared: UnsharedNodes,
        address: str,
        say: Callable[[str], None],
    ) -> None:
        """Begin without voters.

        Args:
            voting: changes the voters; None if the nodes of this job do not elect their head.
            nodes: the connected nodes, by the key of their members.
            roster: knows which places are vacant.
            unshared: knows which nodes do not share the head's run dir.
            address: the address of the head's machine.
            say: writes a sentence to the head's terminal.
        """
        self._voting = voting
        self._nodes = nodes
        self._roster = roster
        self._unshared = unshared
        self._address = address
        self._say = say
        self._wanted: tuple[Voter, ...] = ()
        self._others: tuple[Voter, ...] = ()
        self._said = 0  # the number of voters that the terminal was told last

    def note(self, node: Node, message: Mapping[str, Any]) -> None:
        """Take note of a node's voter, as its message `voter` describes it."""
        name = message["name"]
        node.voter = Voter(name=name, address=node.address, port=message["port"]) if name else None
        node.has_answered_vote = True

    def poll(self) -> None:
        """Order voters, make them the job's, and tell the nodes that they may replace the head."""
        voting = self._voting
        if voting is None:
            return
        placed = [node for node in self._nodes.values() if node.member.place >= 0]
        if not (voting.voters or self._unshared.are_among(placed)):
            return
        placed.sort(key=lambda node: node.member.place)
        for node in self._nodes.values():
            if node.member.ready and not node.was_asked_to_vote:
                node.was_asked_to_vote = True
                node.send("vote", term=voting.sign.term, head=voting.sign.process)
        # While a place is vacant, its node may come back with its vote.
        if placed and not self._roster.vacant and all(node.has_answered_vote for node in placed):
            self._choose(voting, placed)
        self._tell(voting)

    def _choose(self, voting: Voting, placed: list[Node]) -> None:
        """Make one voter of each machine the voters, or, of fewer than FEWEST machines, the one of the head's.

        Nodes that stand by get a vote only where the others are too few: they come and go.
        """
        voters = _one_of_each_machine(placed)
        if len(voters) < FEWEST:
            waiting = sorted(
                (node for node in self._nodes.values() if node.member.place < 0), key=lambda node: node.member.key
            )
            voters = dict([*_one_of_each_machine([*placed, *waiting]).items()][:FEWEST])
        own = voters.get(self._address)
        if own is None:
            return
        chosen = _spread(list(voters.values()))
        if len(chosen) < FEWEST:
            chosen = (own,)
            if not voting.voters:
                return
        every = (node.voter for node in self._nodes.values())
        others = tuple(voter for voter in every if voter is not None and voter not in chosen)
        if (chosen, others) != (self._wanted, self._others):
            self._wanted = chosen
            self._others = others
            voting.want_voters(chosen, own, others)

    def _tell(self, voting: Voting) -> None:
        voters = voting.voters
        if not voters or voters != self._wanted:
            return
        for node in self._nodes.values():
            if node.voter in voters and not node.was_told_to_replace:
                node.was_told_to_replace = True
                node.send("voting")
        if len(voters) != self._said:
            self._said = len(voters)
            if len(voters) >= FEWEST:
                enough = len(voters) // 2 + 1
                self._say(f"{len(voters)} nodes elect the head: {enough} of them go on if its machine is lost")
            else:
                self._say("fewer than three machines take part: the head stays on this one from now on")


def _one_of_each_machine(nodes: list[Node]) -> dict[str, Voter]:
    """Return the first voter of each machine, by the machine's address."""
    found: dict[str, Voter] = {}
    for node in nodes:
        if node.voter is not None:
            found.setdefault(node.address, node.voter)
    return found


def _spread(voters: list[Voter]) -> tuple[Voter, ...]:
    """Return at most MOST_VOTERS of the voters, from all parts of the list: neighbours may fail together."""
    step = max(1.0, len(voters) / MOST_VOTERS)
    return tuple(voters[int(number * step)] for number in range(min(len(voters), MOST_VOTERS)))
