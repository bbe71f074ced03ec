"""What changes the voters that elect the head, as the head's cluster sees it."""

from __future__ import annotations

from typing import Protocol

from ftlaunch.nodes.channel.claims import Sign
from ftlaunch.nodes.channel.votes.records import Voter


class Voting(Protocol):
    """What the head's cluster asks of the voters. `SignOfLife` implements it."""

    @property
    def sign(self) -> Sign:
        """The head's newest sign of life."""

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The voters, as a majority of them knows; empty if there are none."""

    def want_voters(self, voters: tuple[Voter, ...], own: Voter, others: tuple[Voter, ...]) -> None:
        """Make these the voters. own: that of the head's machine; others: those that are only told."""
