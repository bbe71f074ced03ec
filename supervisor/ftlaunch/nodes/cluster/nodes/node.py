"""One node as the head sees it: its connection, its clock, its ranks' mirrors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftlaunch.nodes.channel.connection import Connection
from ftlaunch.nodes.cluster.membership import greeting
from ftlaunch.nodes.cluster.membership.roster import Member
from ftlaunch.nodes.cluster.mirrors import page_words
from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages


class Node:
    """A node that has said hello."""

    def __init__(self, connection: Connection, member: Member, hello: Mapping[str, Any], now: float, head: str) -> None:
        """head: the address of the head's machine, by which other machines find a node that is on it, too."""
        self.connection = connection
        self.member = member
        peer = connection.peer.rpartition(":")[0].strip("[]")
        self.host = str(hello["host"])
        self.address = head if _is_beside(peer) else peer
        self.leaves = ""
        self.signalled = False  # why it is to leave the job, and whether a signal has told it to
        self.probe = int(hello["probe"])
        self.port = int(hello["port"])
        self.came = self.heard = now  # when it came, and when it was last heard, on the head's clock
        self.warnings: list[str] = hello["warnings"]
        self.running: dict[str, Any] = hello["running"]
        self.told_heard = 0.0  # when it was last told that it is heard
        self.gone_already = False  # before they were taken up: see note_end
        self.gone = True  # no rank of it is left
        self.ends = False  # it was told to end ranks of another attempt, and has not said that they are gone
        self._ahead: float | None = None  # how far the head's clock is ahead of the node's, seconds
        self.slots: dict[int, list[int]] | None = None  # rank -> steps of its memory when it came; see ranks_gone
        self.topology = str(hello["topology"])  # its failure domain: nodes of one may be lost together
        self.devices: Mapping[str, Any] = hello.get("devices") or {}
        self.copier_port = int(hello["copier"]["port"])  # 0: there is no copier
        self.copier_lineage = str(hello["copier"]["lineage"])  # the attempt whose copies it keeps
        self.wants_copies_every = int(hello["copier"]["every"])  # steps; 0: it has sent none

    @property
    def name(self) -> str:
        """For people."""
        place = f"node {self.member.place}" if self.member.place >= 0 else "a node standing by"
        return f"{place} ({self.host}, {self.address})"

    @property
    def lineage(self) -> str:
        """Of which attempt its memory was when it came."""
        return self.member.lineage

    def send(self, do: str, **fields: Any) -> None:
        """Send a message of `messages.DOWN`."""
        self.connection.send({"do": do, **fields})

    def hear(self, message: Mapping[str, Any], now: float) -> None:
        """Compare the clocks by a beat."""
        ahead = now - float(message["now"])  # as much too large as the message was under way
        self._ahead = ahead if self._ahead is None else min(self._ahead, ahead)

    def beat(self, message: Mapping[str, Any], pages: ClusterPages, ranks: range) -> None:
        """Write what has changed into the mirrors of its ranks; pages that it has from another place are none of these.

        Raises ValueError.
        """
        for rank, changes in message["words"]:
            if rank in ranks:
                page_words.write(pages[rank], changes, int((self._ahead or 0.0) * 1e9))

    def note_end(self, name: str, message: Mapping[str, Any]) -> None:
        """An end of ranks that run on, before a head has taken them up."""
        if name == "exits":
            self.running["ended"] |= message["codes"]
        else:
            self.gone_already = True
            self.port = message["port"]

    def ranks_gone(self, message: Mapping[str, Any]) -> None:
        """No rank is left; those that ran on when the node came have changed its memory since. Raises ValueError."""
        self.ends = False
        if self.slots is not None:
            self.slots = greeting.slots_of(message)

    def here(self, moment: float) -> float:
        """A moment of the node's clock on the head's."""
        return moment + (self._ahead or 0.0)


def _is_beside(peer: str) -> bool:
    """Whether a node's address is the loopback's: it is on the head's machine."""
    return peer == "::1" or peer.startswith("127.")
