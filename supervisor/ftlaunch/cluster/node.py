"""One node as the head sees it: its connection, its clock, its ranks' mirrors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftlaunch.channel.connection import Connection
from ftlaunch.cluster import page_words
from ftlaunch.cluster.cluster_pages import ClusterPages
from ftlaunch.cluster.roster import Member

_ANSWER = 0.25  # seconds between answers to beats


class Node:
    """A node that has said hello."""

    def __init__(self, connection: Connection, member: Member, hello: Mapping[str, Any], now: float) -> None:
        self.connection, self.member = connection, member
        self.host, self.address = str(hello["host"]), connection.peer.rpartition(":")[0].strip("[]")
        self.probe, self.port = int(hello["probe"]), int(hello["port"])
        self.heard = now  # when it was last heard, on the head's clock
        self.gone = True  # no rank of it is left
        self._answered = 0.0  # the newest beat that was answered, on the node's clock
        self._ahead: float | None = None  # how far the head's clock is ahead of the node's, seconds
        self.slots: dict[int, list[int]] | None = None  # rank -> steps that its memory held when it came

    @property
    def name(self) -> str:
        """For people."""
        place = f"node {self.member.place}" if self.member.place >= 0 else "a node standing by"
        return f"{place} ({self.host}, {self.address})"

    def send(self, do: str, **fields: Any) -> None:
        """Send a message of `messages.DOWN`."""
        self.connection.send({"do": do, **fields})

    def beat(self, message: Mapping[str, Any], now: float, pages: ClusterPages, ranks: range) -> None:
        """Write what has changed into the mirrors of its ranks. Raises ValueError."""
        ahead = now - float(message["now"])  # as much too large as the message was under way
        self._ahead = ahead if self._ahead is None else min(self._ahead, ahead)
        for rank, changes in message["words"]:
            if rank not in ranks:
                raise ValueError(f"words of rank {rank!r}, which is not its own")
            page_words.write(pages[rank], changes, int(self._ahead * 1e9))

    def answer(self, message: Mapping[str, Any]) -> None:
        """Have the agent know that its beat was heard: by that it knows for how long its ranks are let live."""
        if message["now"] - self._answered >= _ANSWER:
            self._answered = message["now"]
            self.send("heard", now=self._answered)

    def here(self, moment: float) -> float:
        """A moment of the node's clock on the head's."""
        return moment + (self._ahead or 0.0)
