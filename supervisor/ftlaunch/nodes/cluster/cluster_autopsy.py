"""What an autopsy is made of, collected on every node into one directory of the run dir, which all nodes share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftlaunch.nodes.cluster.cluster import Cluster
from ftlaunch.spec.nodes.placement import by_node


class ClusterCollectors:
    """Starts a collector on every node with ranks to look at; one request at a time counts."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._number = 0
        self._current: Collection | None = None
        cluster.on_collected = self._on_collected

    def __call__(self, request: Mapping[str, Any]) -> Collection:
        """See autopsy.client.Collect."""
        self._number += 1
        parts = by_node({entry["rank"]: entry for entry in request["ranks"]}, self._cluster.ranks_each)
        asked = set()
        for place, ranks in parts.items():
            told = {"directory": request["directory"], "ranks": list(ranks.values())}
            if self._cluster.tell_place(place, "collect", number=self._number, request=told):
                asked.add(place)
        self._current = Collection(self._cluster, self._number, asked)
        return self._current

    def _on_collected(self, place: int, number: int) -> None:
        if self._current is not None and number == self._number:
            self._current.awaited.discard(place)


class Collection:
    """See autopsy.client.DumpCollector."""

    def __init__(self, cluster: Cluster, number: int, awaited: set[int]) -> None:
        self._cluster = cluster
        self._number = number
        self.awaited = awaited
        """places whose collectors work"""

    def poll(self) -> int | None:
        """None while one of them collects."""
        return None if self.awaited else 0

    def kill(self) -> None:
        """End them."""
        for place in self.awaited:
            self._cluster.tell_place(place, "collect_no_more", number=self._number)
        self.awaited = set()
