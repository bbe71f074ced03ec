"""One node as the head sees it: its connection, its clock, its memory, and its place. Runs in the head's event loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftlaunch.nodes.channel.connection import Connection
from ftlaunch.nodes.channel.votes.records import Voter
from ftlaunch.nodes.cluster.membership import greeting
from ftlaunch.nodes.cluster.membership.roster import Member
from ftlaunch.nodes.cluster.mirrors import page_words
from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages


class Node:
    """A node that has said hello and may take part."""

    def __init__(self, connection: Connection, member: Member, hello: Mapping[str, Any], now: float, head: str) -> None:
        """Create a node from the fields of its hello.

        Args:
            connection: the connection to its agent.
            member: its entry in the roster.
            hello: its hello.
            now: monotonic seconds.
            head: the address of the head's machine, which is also that of a node on the same machine.
        """
        self.connection = connection
        self.member = member
        peer = connection.peer.rpartition(":")[0].strip("[]")
        self.host = str(hello["host"])
        self.address = head if _is_beside(peer) else peer
        self.head = head  # the address of the head's machine
        self.apart: frozenset[str] = frozenset()  # which of run_dir and checkpoint_dir the node does not share
        self.cache_asked = -1  # the version of the small files that its checkpoint cache was asked to take
        self.cache_version = -1  # the version that the cache has
        self.journal_sent = 0  # the bytes of the journal that a node with a run dir of its own has
        self.files_sent: dict[str, bytes] = {}  # the small files of the run dir that such a node has, by name
        self.voter: Voter | None = None  # which keeps who the head is; None without one
        self.was_asked_to_vote = False  # whether the node was told to start a voter
        self.has_answered_vote = False  # whether the node has said whether it has a voter
        self.was_told_to_replace = False  # whether the node was told that it may replace this head
        self.leaves = ""  # why the node must leave the job, or empty
        self.signalled = False  # whether a signal has told the node to leave
        self.probe = int(hello["probe"])  # a port that refuses connections once the agent has ended
        self.port = int(hello["port"])  # at which the ranks of the next attempt can meet
        self.arrived_at = now  # when the node came, on the head's clock
        self.last_message_at = now  # when the newest message of the node came, on the head's clock
        self.warnings: list[str] = hello["warnings"]
        self.running: dict[str, Any] = hello["running"]  # describes the ranks that ran on when the node came
        self.confirmed_at = 0.0  # when a beat of the node was last confirmed
        self.gone_already = False  # whether those ranks were gone before they could be adopted
        self.gone = True  # whether no rank of the node is left
        self.ends = False  # whether the node is ending ranks of another attempt
        self.awaits_memory = False  # whether GPU memory of the node's last ranks may not be free yet
        self._ahead: float | None = None  # how far the head's clock is ahead of the node's, seconds
        self.slots: dict[int, list[int]] | None = None  # rank -> steps in its memory, until taken up
        self.topology = str(hello["topology"])  # the failure domain, whose nodes may be lost together
        self.devices: Mapping[str, Any] = hello.get("devices") or {}
        self.copier_port = int(hello["copier"]["port"])  # 0 without a copier
        self.copier_lineage = str(hello["copier"]["lineage"])  # the attempt whose copies the copier keeps
        self.wants_copies_every = int(hello["copier"]["every"])  # steps; 0 before the first copy

    @property
    def name(self) -> str:
        """The place, host and address, for people."""
        place = f"node {self.member.place}" if self.member.place >= 0 else "a node standing by"
        return f"{place} ({self.host}, {self.address})"

    @property
    def lineage(self) -> str:
        """The lineage of the steps in the node's memory when it came."""
        return self.member.lineage

    def send(self, do: str, **fields: Any) -> None:
        """Send a message of `messages.DOWN`."""
        self.connection.send({"do": do, **fields})

    def compare_clocks(self, message: Mapping[str, Any], now: float) -> None:
        """Compare the clocks by a beat that has come at `now`."""
        ahead = now - float(message["now"])  # too large by the time that the message was under way
        self._ahead = ahead if self._ahead is None else min(self._ahead, ahead)

    def apply_beat(self, message: Mapping[str, Any], pages: ClusterPages, ranks: range) -> None:
        """Write the changed words of a beat into the mirrors of the node's ranks.

        Args:
            message: the beat.
            pages: the mirrors.
            ranks: the ranks of the node's place; words of other ranks, from an earlier place, are ignored.

        Raises:
            ValueError: a change is malformed.
        """
        for rank, changes in message["words"]:
            if rank in ranks:
                page_words.write(pages[rank], changes, int((self._ahead or 0.0) * 1e9))

    def note_end(self, name: str, message: Mapping[str, Any]) -> None:
        """Note that ranks that ran on have ended before they could be adopted.

        Args:
            name: the name of the message, `exits` or `gone`.
            message: the message.
        """
        if name == "exits":
            self.running["ended"] |= message["codes"]
        else:
            self.gone_already = True
            self.port = message["port"]

    def note_ranks_gone(self, message: Mapping[str, Any]) -> None:
        """Note that no rank is left. If ranks ran on when the node came, take the steps that they have left in memory.

        Raises:
            ValueError: the message is malformed.
        """
        self.ends = False
        self.awaits_memory = bool(message["awaits_memory"])
        if self.slots is not None:
            self.slots = greeting.slots_of(message)

    def to_head_clock(self, moment: float) -> float:
        """Return a moment of the node's clock on the head's clock."""
        return moment + (self._ahead or 0.0)


def _is_beside(peer: str) -> bool:
    """Return whether an address is a loopback address, so that the node is on the head's machine."""
    return peer == "::1" or peer.startswith("127.")
