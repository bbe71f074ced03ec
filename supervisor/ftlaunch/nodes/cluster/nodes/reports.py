"""Handles the nodes' reports about the running attempt: words of pages, starts, ends.

Reports about older attempts are dropped. Runs in the head's event loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch.nodes.cluster.mirrors.cluster_ranks import ClusterRanks
from ftlaunch.nodes.cluster.nodes.node import Node


class Reports:
    """The reports of all nodes. Implements the engine's DeathNotices: `fd` is readable when ranks begin to die."""

    def __init__(self, pages: ClusterPages, clock: Callable[[], float]) -> None:
        """Begin without an attempt. pages: the mirrors. clock: monotonic seconds."""
        self._pages = pages
        self._clock = clock
        self.group: ClusterRanks | None = None
        """the ranks of the running attempt, or of the last one"""
        self.lineage = ""
        """the lineage of the running attempt, or of the one that may be adopted"""
        self._dying: set[int] = set()
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def read_dying(self) -> list[int]:
        """Return the ranks that have begun to die."""
        os.eventfd_read(self.fd)
        return sorted(self._dying)

    def forget(self) -> None:
        """Forget the ranks that have begun to die, because no rank lives any more."""
        self._dying.clear()

    def handle_message(self, node: Node, name: str, message: dict[str, Any], ranks: range) -> None:
        """Handle a message of a node that has a place.

        Args:
            node: the node.
            name: the name of the message.
            message: the message.
            ranks: the ranks of the node.

        Raises:
            ValueError: the message is malformed; KeyError and TypeError can be raised for the same reason.
        """
        if name == "beat":
            self._on_beat(node, message, ranks)
        elif self.group is not None and message.get("attempt") == self.group.attempt:
            self._handle_report(group=self.group, node=node, name=name, message=message, ranks=ranks)

    def _handle_report(
        self, group: ClusterRanks, node: Node, name: str, message: Mapping[str, Any], ranks: range
    ) -> None:
        if name == "started":
            group.on_started(_own(message["pids"], ranks), _own(message["log_from"], ranks))
        elif name == "dying":
            self._on_dying(group, _own(message["ranks"], ranks))
        elif name == "gone":
            node.gone = True
            node.port = message["port"]
            self._pages.reported_evidence |= _own(message["evidence"], ranks)
        elif name == "exits":
            for rank, code in _own(message["codes"], ranks).items():
                group.on_exit(rank, code)
        elif name == "cannot_start" and message["rank"] in ranks:
            why = f"rank {message['rank']} could not be started on {node.name}: {message['why']}"
            for rank in ranks:
                group.on_exit(rank, 1, why)

    def _on_beat(self, node: Node, message: dict[str, Any], ranks: range) -> None:
        node.compare_clocks(message, self._clock())
        if message["lineage"] != self.lineage:
            return  # the node has not started its ranks yet: the words are about another attempt
        node.apply_beat(message, self._pages, ranks)
        if self.group is None:
            return
        self.group.on_stopped(ranks, [rank for rank in message["stopped"] if rank in ranks])
        for rank, active, logged, busy in message["noted"]:
            if rank in ranks:
                active_at = node.to_head_clock(float(active))
                logged_at = node.to_head_clock(float(logged))
                self.group.on_noted(rank, active_at, logged_at, busy=bool(busy))

    def _on_dying(self, group: ClusterRanks, ending: Mapping[int, int]) -> None:
        group.on_dying(ending)
        self._dying |= ending.keys()
        os.eventfd_write(self.fd, 1)


def _own(by_rank: Mapping[str, Any], ranks: range) -> dict[int, int]:
    """Return those numbers that belong to a node's own ranks, by rank."""
    return {int(rank): int(value) for rank, value in by_rank.items() if int(rank) in ranks}
