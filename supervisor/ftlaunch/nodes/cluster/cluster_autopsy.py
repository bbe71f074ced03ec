"""Collects the data of an autopsy on all nodes, into one directory of the shared run dir.

Runs in the head's event loop, in place of the one-machine collector of `ftlaunch.autopsy.client`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftlaunch.nodes.cluster.cluster import Cluster
from ftlaunch.spec.nodes.placement import by_node


class ClusterCollectors:
    """Starts a collector on each node with ranks to look at. Only the newest request counts."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._number = 0
        self._current: Collection | None = None
        cluster.on_collected = self._on_collected

    def __call__(self, request: Mapping[str, Any]) -> Collection:
        """Start collectors for a request. Implements `autopsy.client.Collect`.

        Args:
            request: the directory, and what to collect for which rank.

        Returns:
            The collection under way.
        """
        self._number += 1
        parts = by_node({entry["rank"]: entry for entry in request["ranks"]}, self._cluster.ranks_each)
        asked = set()
        for place, ranks in parts.items():
            part = {"directory": request["directory"], "ranks": list(ranks.values())}
            if self._cluster.send_to_place(place, "collect", number=self._number, request=part):
                asked.add(place)
        self._current = Collection(self._cluster, self._number, asked)
        return self._current

    def _on_collected(self, place: int, number: int) -> None:
        if self._current is not None and number == self._number:
            self._current.awaited.discard(place)


class Collection:
    """The collectors of one request. Implements `autopsy.client.DumpCollector`."""

    def __init__(self, cluster: Cluster, number: int, awaited: set[int]) -> None:
        self._cluster = cluster
        self._number = number
        self.awaited = awaited
        """the places whose collectors are still at work"""

    def poll(self) -> int | None:
        """Return 0 once all collectors have finished, and None before."""
        return None if self.awaited else 0

    def kill(self) -> None:
        """End the collectors that are still at work."""
        for place in self.awaited:
            self._cluster.send_to_place(place, "collect_no_more", number=self._number)
        self.awaited = set()
